"""The operator's calls to the API server, on plain dictionaries."""

import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from paceline.operator.kube.errors import ApiError, SilentError, UnreachableError
from paceline.operator.kube.resources import Resource, resource_of

Manifest = dict[str, Any]
CallObserver = Callable[[str, str, int, float], None]
"""Told of every call: the verb, the path's collection, the status (0 without an answer), the seconds."""

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


def _anyone() -> None:
    """Let every write pass."""


def _nobody(verb: str, collection: str, status: int, seconds: float) -> None:
    """Observe nothing."""


class KubeClient:
    """Calls with explicit time-outs. Every method raises ApiError or UnreachableError.

    `guard` is asked before every write, and raises where this process may not write any more.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        request_seconds: float = 15,
        observer: CallObserver = _nobody,
        guard: Callable[[], None] = _anyone,
    ) -> None:
        self._api = api
        self._guard = guard
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, sock_connect=5)
        self._observer = observer

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        """Return an object, or None where there is none."""
        try:
            return await self.call("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def serves(self, resource: Resource) -> bool:
        """Tell whether the API server serves a kind."""
        try:
            group = await self.call("GET", f"/apis/{resource.api_version}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(kind["name"] == resource.plural for kind in group["resources"])

    async def page(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> Manifest:
        """Return one page of a list."""
        return await self.call("GET", resource.path(namespace), query=query)

    async def create(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Create an object; a conflict (409) where one of that name exists."""
        resource = resource_of(manifest)
        path = resource.path(manifest["metadata"]["namespace"])
        return await self.call("POST", path, query={"fieldManager": manager}, body=manifest)

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Apply an object on the server's side; without `force` a conflict (409) where another owns a field.

        A `resourceVersion` in its metadata makes a conflict of every change since then.
        """
        metadata = manifest["metadata"]
        path = resource_of(manifest).path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self.call("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Manifest,
        *,
        manager: str,
        subresource: str | None = None,
    ) -> Manifest:
        """Merge fields into an object; a null removes one, whoever owns it."""
        path = resource.path(namespace, name, subresource)
        return await self.call("PATCH", path, query={"fieldManager": manager}, body=body, content_type=_MERGE)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; a conflict (409) where it changed since its `resourceVersion`."""
        metadata = manifest["metadata"]
        path = resource_of(manifest).path(metadata["namespace"], metadata["name"])
        return await self.call("PUT", path, body=manifest)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete the object of that UID, and what it owns after it; nothing where it is gone already."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self.call("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def watch(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[Manifest]:
        """Yield a watch's events until the server ends it, bookmarks and errors included.

        Raises UnreachableError when the stream breaks, SilentError when nothing was heard for `silence_seconds`.
        """
        path = resource.path(namespace)
        quiet = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence_seconds)
        response = await self._send("GET", path, {**query, "watch": "true"}, None, _JSON, quiet)
        buffer = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        except TimeoutError as error:
            raise SilentError(f"watch of {path}: nothing heard for {silence_seconds} s") from error
        except aiohttp.ClientError as error:
            raise UnreachableError(f"watch of {path}: {error!r}") from error
        finally:
            response.close()

    async def call(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        """Make one call and return the parsed answer."""
        if verb != "GET":
            self._guard()
        response = await self._send(verb, path, query or {}, body, content_type, self._timeout)
        try:
            parsed: Manifest = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"{verb} {path}: {error!r}") from error
        return parsed

    async def _send(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        started, status = time.monotonic(), 0
        try:
            method, url, headers, data, _ = await self._api.param_serialize(
                method=verb,
                resource_path=path,
                query_params=list(query.items()),
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, headers, data, _request_timeout=timeout)
            status = answer.status
            response: aiohttp.ClientResponse = answer.response
            if status >= 400:
                raise ApiError.parse(status, await response.read(), f"{verb} {path}")
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{verb} {path}: {error!r}") from error
        finally:
            self._observer(verb, path, status, time.monotonic() - started)
        return response
