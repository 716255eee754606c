"""A small synchronous client of the API server, quicker than a process of kubectl for each call."""

import contextlib
import json
import secrets
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from paceline.operator.api.crd import crd_yaml
from paceline.operator.api.v1alpha1 import API_VERSION, KIND
from paceline.operator.kube.resources import PROFILES, Resource, resource_of
from testbed import ApiServer, wait_until

Manifest = dict[str, Any]


class RefusedError(AssertionError):
    """The API server refused a call; `status` and `message` say why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """Calls with the identity of a kubeconfig."""

    def __init__(self, kubeconfig: Path, ca_file: Path) -> None:
        parsed = yaml.safe_load(kubeconfig.read_text())
        token = parsed["users"][0]["user"]["token"]
        self._http = httpx.Client(
            base_url=parsed["clusters"][0]["cluster"]["server"],
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(ca_file)),
            trust_env=False,
            timeout=30,
        )

    def close(self) -> None:
        self._http.close()

    def call(self, verb: str, path: str, body: Any = None, content_type: str = "application/json", **query: str) -> Any:
        answer = self._http.request(
            verb,
            path,
            params=query,
            content=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
        )
        if answer.status_code >= 400:
            is_json = "json" in answer.headers.get("content-type", "")
            message = answer.json().get("message", answer.text) if is_json else answer.text
            raise RefusedError(answer.status_code, message)
        return answer.json()

    def create(self, manifest: Manifest, **query: str) -> Any:
        return self.call("POST", resource_of(manifest).path(manifest["metadata"]["namespace"]), manifest, **query)

    def get(self, resource: Resource, namespace: str, name: str) -> Any:
        return self.call("GET", resource.path(namespace, name))

    def find(self, resource: Resource, namespace: str, name: str) -> Any:
        """Return an object, or None."""
        try:
            return self.get(resource, namespace, name)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def is_served(self, resource: Resource) -> bool:
        try:
            self.call("GET", resource.path("default"))
        except RefusedError as error:
            if error.status in (404, 429):  # not there yet, or its storage is being made
                return False
            raise
        return True

    def list(self, resource: Resource, namespace: str) -> Any:
        return self.call("GET", resource.path(namespace))["items"]

    def merge(self, resource: Resource, namespace: str, name: str, body: Any, subresource: str | None = None) -> Any:
        return self.call(
            "PATCH", resource.path(namespace, name, subresource), body, content_type="application/merge-patch+json"
        )

    def apply(self, manifest: Manifest, *, manager: str = "tester", force: bool = False) -> Any:
        metadata = manifest["metadata"]
        return self.call(
            "PATCH",
            resource_of(manifest).path(metadata["namespace"], metadata["name"]),
            manifest,
            content_type="application/apply-patch+yaml",
            fieldManager=manager,
            force="true" if force else "false",
        )

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        self.call("DELETE", resource.path(namespace, name))

    def profile(self, namespace: str, name: str, spec: Manifest) -> Any:
        """Create a profile."""
        return self.create(profile_manifest(namespace, name, spec))

    def status(self, namespace: str, name: str) -> Any:
        """Return a profile's status, empty where it has none."""
        return self.get(PROFILES, namespace, name).get("status", {})


def profile_manifest(namespace: str, name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


@contextlib.contextmanager
def profile_api(server: ApiServer) -> Iterator[Api]:
    """Install the InferenceProfile definition into a cluster and have the administrator's client of it."""
    server.kubectl("apply", "--server-side", "-f", "-", stdin=crd_yaml())
    api = Api(server.kubeconfig, server.ca_file)
    try:
        wait_until(lambda: api.is_served(PROFILES), "profiles are served")
        yield api
    finally:
        api.close()


@contextlib.contextmanager
def new_space(api: Api) -> Iterator[str]:
    """Have a namespace of one's own within the block."""
    name = f"test-{secrets.token_hex(4)}"
    api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with contextlib.suppress(RefusedError):  # a test may have removed it itself
        api.call("DELETE", f"/api/v1/namespaces/{name}")
