"""Who calls, and what he may do: asked of a gate, which is a token's file locally and the API server in a cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Protocol

import structlog
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from paceline.control_api.errors import ProblemError
from paceline.control_api.profiles.base import ProfileKey
from paceline.operator.api.v1alpha1 import GROUP, PLURAL

bearer = HTTPBearer(
    auto_error=False,
    description="In a cluster a token of Kubernetes (`kubectl create token`), locally that of `paceline up`.",
)


class Verb(StrEnum):
    """What is done to a profile, in Kubernetes' words. Changing pacing and measuring are both `patch`."""

    GET = "get"
    LIST = "list"
    PATCH = "patch"


@dataclass(frozen=True)
class Caller:
    """Who calls, as the gate knows him."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


class Gate(Protocol):
    """Tells who the bearer of a token is, and what he may do. Both raise ProblemError 503 where it can't tell now."""

    token_hint: str
    """Where a caller gets a token from."""

    async def authenticate(self, token: str) -> Caller | None:
        """Return who the bearer of a token is, or None for a token that is not valid."""
        ...

    async def allows(self, caller: Caller, verb: Verb, namespace: str | None, name: str | None) -> bool:
        """Tell whether a caller may do that: to one profile, to all of a namespace, or to all of them."""
        ...


@dataclass(frozen=True)
class Access:
    """A caller with what he may do."""

    caller: Caller
    gate: Gate

    async def require(self, verb: Verb, key: ProfileKey) -> None:
        """Let a caller through who may do that to the profile, whether it exists or not. Raises ProblemError 403."""
        if not await self.gate.allows(self.caller, verb, key.namespace, key.name):
            raise self._forbidden(verb, f'the namespace "{key.namespace}"', key.namespace, key.name)

    async def listable(self, namespaces: Iterable[str]) -> frozenset[str] | None:
        """Return those of the namespaces whose profiles a caller may list; None for all there are.

        Raises ProblemError 403 where he may list none of them.
        """
        if await self.gate.allows(self.caller, Verb.LIST, None, None):
            return None
        allowed = {name for name in namespaces if await self.gate.allows(self.caller, Verb.LIST, name, None)}
        if not allowed:
            raise self._forbidden(Verb.LIST, "any namespace that has some", None, None)
        return frozenset(allowed)

    def _forbidden(self, verb: Verb, where: str, namespace: str | None, name: str | None) -> ProblemError:
        resource = f"{PLURAL}.{GROUP}"
        what = f'{resource} "{name}"' if name else resource
        return ProblemError(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            f'"{self.caller.name}" may not {verb} {what} in {where}: it needs a Role with the verb `{verb}` on '
            f"`{resource}` there, bound to it (kubectl create role --help). Nothing was changed",
            extra={"verb": str(verb), "resource": resource, "namespace": namespace, "name": name},
        )


async def require_token(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> Access:
    """Let a request through that carries a valid token.

    Raises:
        ProblemError: 401 for a missing or a wrong token.
    """
    gate: Gate = request.app.state.context.gate
    caller = None if credentials is None else await gate.authenticate(credentials.credentials)
    if caller is not None:
        structlog.contextvars.bind_contextvars(caller=caller.name)
        return Access(caller, gate)
    wrong = "the bearer token is not the right one, or has expired"
    fault = "no bearer token was sent" if credentials is None else wrong
    raise ProblemError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        f"{fault}: send `Authorization: Bearer <token>` with {gate.token_hint}",
        headers={"WWW-Authenticate": 'Bearer realm="paceline"'},
    )


CallerAccess = Annotated[Access, Depends(require_token)]
