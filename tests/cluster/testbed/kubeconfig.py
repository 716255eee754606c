"""Kubeconfig files."""

import json
from pathlib import Path


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, token: str, namespace: str = "default") -> Path:
    """Write a kubeconfig with one user, who has a bearer token, readable by the owner only. Return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path
