"""The volumes of an engine pod, each with its mount: settings, token, model, caches, shared memory."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from paceline.operator.specs.engine_command import MODEL_MOUNT, model_location
from paceline.operator.specs.settings_map import SETTINGS_KEY
from paceline.operator.specs.subject import Subject

SETTINGS_FOLDER: Final = "/etc/paceline/settings"
SETTINGS_FILE: Final = f"{SETTINGS_FOLDER}/{SETTINGS_KEY}"
TOKEN_FOLDER: Final = "/etc/paceline/admin"
CACHE_FOLDER: Final = "/var/cache/paceline"


@dataclass(frozen=True)
class Volume:
    """A volume and where the engine's container sees it."""

    name: str
    source: dict[str, Any]
    mount_path: str
    read_only: bool = False

    def volume(self) -> dict[str, Any]:
        """Return the pod's part."""
        return {"name": self.name, **self.source}

    def mount(self) -> dict[str, Any]:
        """Return the container's part."""
        read_only = {"readOnly": True} if self.read_only else {}
        return {"name": self.name, "mountPath": self.mount_path, **read_only}


def allowed_folder(path: str, folders: list[str]) -> str | None:
    """Return the longest of `folders` that holds the absolute `path`, or None; `..` never leaves a folder."""
    wanted = PurePosixPath(path)
    if ".." in wanted.parts:
        return None
    holding = [folder for folder in folders if wanted.is_relative_to(folder)]
    return max(holding, key=len, default=None)


def engine_volumes(subject: Subject) -> list[Volume]:
    """Return the volumes of an engine pod, in the order in which the pod lists them."""
    devices = subject.spec.engine.parallelism.devices
    return [
        Volume("settings", {"configMap": {"name": subject.settings_name}}, SETTINGS_FOLDER, read_only=True),
        Volume("admin-token", {"secret": {"secretName": subject.token_name}}, TOKEN_FOLDER, read_only=True),
        *_model_volume(subject),
        Volume("cache", {"emptyDir": {}}, CACHE_FOLDER),
        Volume("tmp", {"emptyDir": {}}, "/tmp"),
        # The engine's processes and NCCL exchange through shared memory; the container runtime's default is 64 MiB.
        Volume("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": f"{2 + devices}Gi"}}, "/dev/shm"),
        *(
            Volume(
                mount.name,
                {"hostPath": {"path": mount.host_path, "type": mount.host_path_type}},
                mount.mount_path,
                read_only=True,
            )
            for mount in subject.config.host_mounts
        ),
    ]


def _model_volume(subject: Subject) -> list[Volume]:
    source = subject.spec.model.source
    scheme, _, rest = source.partition("://")
    if scheme == "pvc":
        claim = {"persistentVolumeClaim": {"claimName": rest.partition("/")[0], "readOnly": True}}
        return [Volume("model", claim, MODEL_MOUNT, read_only=True)]
    if scheme == "file":
        path, _ = model_location(source)
        folder = allowed_folder(path, subject.config.allowed_file_folders)
        if folder is None:
            raise ValueError(f"{path} lies below none of the folders that the operator allows")
        # The allowed folder, not the model's: kubelet would create a missing path, and the engine names it better.
        return [Volume("model", {"hostPath": {"path": folder, "type": "Directory"}}, folder, read_only=True)]
    return []
