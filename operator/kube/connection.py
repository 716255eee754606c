"""How the operator reaches the API server: as a pod by its service account, or by a kubeconfig."""

import os
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config

_ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConnectionSettingsError(Exception):
    """There is no way to the API server: neither a service account nor a kubeconfig."""


class RotatingToken:
    """A service account's token, read anew whenever its file changed: kubelet rotates it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def refresh(self, configuration: Any) -> None:
        """Put the file's present token into the client's configuration."""
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._seen:
            configuration.api_key["BearerToken"] = f"Bearer {self._path.read_text().strip()}"
            self._seen = stamp


def in_cluster_configuration(host: str, folder: Path = _ACCOUNT_FOLDER) -> Configuration:
    """Return the client's configuration for a pod whose service account is mounted at `folder`."""
    configuration = Configuration()
    configuration.host = host
    configuration.ssl_ca_cert = str(folder / "ca.crt")
    token = RotatingToken(folder / "token")
    token.refresh(configuration)
    configuration.refresh_api_key_hook = token.refresh
    return configuration


async def connect(kubeconfig: Path | None = None) -> ApiClient:
    """Return a client of the API server: by `kubeconfig` where one is given, else as a pod of the cluster.

    Only the client's transport is used, never its typed models: those cost 135 MiB and seconds of start.
    """
    if kubeconfig is not None:
        configuration = Configuration()
        await load_kube_config(str(kubeconfig), client_configuration=configuration)
    else:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port or not _ACCOUNT_FOLDER.exists():
            raise ConnectionSettingsError(
                "not in a cluster: there is no service account; name a kubeconfig with --kubeconfig"
            )
        configuration = in_cluster_configuration(f"https://{f'[{host}]' if ':' in host else host}:{port}")
    # Many short requests to one host, beside the watches; the client's default would queue them.
    configuration.connection_pool_maxsize = 256
    return ApiClient(configuration)
