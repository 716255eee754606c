"""The image that holds a pod's sandbox open, written without any tool."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from testbed.commands import kubernetes_command
from testbed.node_files import PAUSE_IMAGE


def pause_image(folder: Path) -> Path:
    """Write the image that holds a pod's sandbox open as a docker archive to `folder`, and return its path."""
    layer = _tar({"pause": ((kubernetes_command("pause")).read_bytes(), 0o755)})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    encoded = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]).encode()
    archive = folder / "pause.tar"
    archive.write_bytes(
        _tar({"layer.tar": (layer, 0o644), config_name: (encoded, 0o644), "manifest.json": (manifest, 0o644)})
    )
    return archive


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
