"""Waits for what the operator makes of a change, by a watch of the one profile."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable
from typing import Final

import structlog

from paceline.control_api.profiles.cluster_object import ClusterProfile
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import KubeError
from paceline.operator.kube.resources import PROFILES

_RETRY_SECONDS: Final = 0.2

_log = structlog.get_logger(__name__)


async def wait_for(
    client: KubeClient, start: ClusterProfile, done: Callable[[ClusterProfile], bool], seconds: float
) -> ClusterProfile:
    """Return the profile once `done` holds of it, or as it was last seen when the time is over.

    An API server that goes away meanwhile is waited for. Raises ProblemError 404 when the profile is deleted.
    """
    seen = start
    if done(start):
        return start
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), contextlib.aclosing(_versions(client, start, seconds)) as versions:
            async for seen in versions:
                if done(seen):
                    break
    return seen


async def _versions(client: KubeClient, start: ClusterProfile, seconds: float) -> AsyncGenerator[ClusterProfile]:
    """Yield every version of a profile that follows; after a break, whichever there is then."""
    key, version = start.key, start.version
    while True:
        query = {
            "fieldSelector": f"metadata.name={key.name}",
            "resourceVersion": version,
            "timeoutSeconds": str(math.ceil(seconds) + 1),
        }
        try:
            watch = client.watch(PROFILES, key.namespace, query, silence_seconds=seconds + 1)
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        raise key.missing()
                    yield ClusterProfile.read(event["object"])
            found = await client.get(PROFILES, key.namespace, key.name)
        except KubeError as error:
            _log.info("watch_renewed", profile=str(key), reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if found is None:
            raise key.missing()
        seen = ClusterProfile.read(found)
        version = seen.version
        yield seen
