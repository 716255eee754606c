"""The way to the API server, opened once the event loop runs."""

import os
from pathlib import Path

from paceline.control_api.errors import StartupError
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.connection import connect

REQUEST_SECONDS = 10.0


class Cluster:
    """The client of the API server: by a kubeconfig where one is given, else by the pod's service account."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._client: KubeClient | None = None
        if kubeconfig is not None and not kubeconfig.is_file():
            raise StartupError(f"PACELINE_API_KUBECONFIG: {kubeconfig} is not there")
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
            message = (
                "PACELINE_API_PROFILE_STORE is kubernetes, and this is no pod of a cluster: name a kubeconfig in "
                "PACELINE_API_KUBECONFIG"
            )
            raise StartupError(message)

    async def open(self) -> None:
        """Make the client; nothing is sent yet, so that the control API starts while the API server is away."""
        self._client = KubeClient(await connect(self._kubeconfig), request_seconds=REQUEST_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> KubeClient:
        """The client, from `open` on."""
        assert self._client is not None, "the cluster's client is used before it was opened"
        return self._client
