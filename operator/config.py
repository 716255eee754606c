"""The operator's own configuration: what the chart or an administrator decides, never a profile."""

from pathlib import PurePosixPath
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from paceline.operator.api.v1alpha1 import Accelerator

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/", max_length=1_024)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(gt=0)]


class ConfigModel(BaseModel):
    """Base of the configuration: camelCase in the file, unknown keys refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class HostMount(ConfigModel):
    """A folder of the node that engine pods see at the same or another path, read only."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    host_path: AbsolutePath
    mount_path: AbsolutePath
    host_path_type: str = ""


class PodSelector(ConfigModel):
    """Pods of a namespace, by its name and the pods' labels."""

    namespace: str
    labels: dict[str, str]


class EngineConfig(ConfigModel):
    """How engine pods are made, as far as profiles don't say.

    `allowed_file_folders` are the node's folders below which `file://` sources may lie. `host_mounts` bring an engine
    that is not in the image. `admin_host` overrides the pods' addresses, for an operator outside of the pod network.
    `run_as_user` and `fs_group` are left out of the pods where they are null.
    """

    images: dict[Accelerator, str] = {}
    image_pull_secrets: list[str] = []
    python: str = "python3"
    serving_port: Port = 8000
    admin_port: Port = 9000
    admin_host: str | None = None
    allowed_file_folders: list[AbsolutePath] = []
    host_mounts: list[HostMount] = []
    run_as_user: Annotated[int, Field(ge=1)] | None = 10_001
    fs_group: Annotated[int, Field(ge=1)] | None = 10_001
    network_policy: bool = True
    admin_clients: list[PodSelector] = []
    pod_monitor: bool = False

    @field_validator("allowed_file_folders")
    @classmethod
    def _plain_folders(cls, folders: list[str]) -> list[str]:
        for folder in folders:
            if ".." in PurePosixPath(folder).parts or folder == "/":
                raise ValueError(f"{folder} is no folder for models: name one below / without ..")
        return [str(PurePosixPath(folder)) for folder in folders]


class LeaseConfig(ConfigModel):
    """Leader election: the Lease's place, and its times in seconds."""

    namespace: str = "paceline-system"
    name: str = "paceline-operator"
    duration_seconds: Annotated[int, Field(ge=2)] = 15
    renew_seconds: Seconds = 5
    deadline_seconds: Seconds = 10


class WatchConfig(ConfigModel):
    """Time-outs of the watches, in seconds, and the namespaces watched (none named: all).

    The server ends a watch after `server_seconds`; before that it sends a bookmark. A watch without any data for
    `silence_seconds` is doubted: all is listed, and the watch opened anew. Liveness fails where it missed changes for
    twice that time.
    """

    namespaces: list[str] = []
    server_seconds: Annotated[int, Field(ge=5)] = 240
    silence_seconds: Seconds = 90
    page_size: Annotated[int, Field(ge=1)] = 500


class OperatorConfig(ConfigModel):
    """The operator's configuration file.

    `verify_seconds`: how often every engine is asked what it runs. `optional_api_seconds`: how often an API that is
    missing, such as LeaderWorkerSet, is looked for while a profile needs it.
    """

    engine: EngineConfig = EngineConfig()
    lease: LeaseConfig = LeaseConfig()
    watch: WatchConfig = WatchConfig()
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    request_seconds: Seconds = 15
    engine_request_seconds: Seconds = 3
    verify_seconds: Seconds = 300
    optional_api_seconds: Seconds = 60
    http_host: str = "0.0.0.0"
    http_port: Port = 8080
    token_secret: str = "paceline-operator-key"

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read the configuration file's text. Raises pydantic's ValidationError, which names the faulty keys."""
        return cls.model_validate(yaml.safe_load(text) or {})
