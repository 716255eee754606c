"""The gate of a cluster: tokens are checked by TokenReview, permissions by SubjectAccessReview on the profile."""

import hashlib
from typing import Any, Final

from paceline.control_api.auth import Caller, Verb
from paceline.control_api.bounded_cache import BoundedCache
from paceline.control_api.cluster.connection import Cluster
from paceline.control_api.cluster.problems import told
from paceline.operator.api.v1alpha1 import GROUP, PLURAL

REMEMBERED_SECONDS: Final = 5.0
"""How long an answer holds: what is granted or withdrawn in the cluster takes effect within that time."""

MOST_REMEMBERED: Final = 4_096

_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_Question = tuple[Caller, Verb, str | None, str | None]


class Reviews:
    """Asks the API server, and remembers its answers for a moment."""

    token_hint = "a token of the cluster (kubectl create token SERVICE_ACCOUNT, or your own of its identity provider)"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By digests: a token is kept nowhere.
        self._callers: BoundedCache[bytes, Caller | None] = _cache()
        self._answers: BoundedCache[_Question, bool] = _cache()

    async def authenticate(self, token: str) -> Caller | None:
        """Return whose token it is, by TokenReview; None where it is nobody's or has expired."""
        return await self._callers.get(hashlib.sha256(token.encode()).digest(), lambda: self._review_token(token))

    async def allows(self, caller: Caller, verb: Verb, namespace: str | None, name: str | None) -> bool:
        """Tell by SubjectAccessReview whether Kubernetes' authorizers, RBAC above all, allow it."""
        question = (caller, verb, namespace, name)
        return await self._answers.get(question, lambda: self._review_access(*question))

    async def _review_token(self, token: str) -> Caller | None:
        status = await self._ask(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not status.get("authenticated"):
            return None
        user = status["user"]
        return Caller(
            name=user["username"],
            uid=user.get("uid", ""),
            groups=tuple(user.get("groups") or ()),
            extra={key: tuple(values) for key, values in (user.get("extra") or {}).items()},
        )

    async def _review_access(self, caller: Caller, verb: Verb, namespace: str | None, name: str | None) -> bool:
        resource = {"group": GROUP, "resource": PLURAL, "verb": str(verb), "namespace": namespace, "name": name}
        spec: dict[str, Any] = {
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {key: list(values) for key, values in caller.extra.items()},
            "resourceAttributes": {key: value for key, value in resource.items() if value is not None},
        }
        status = await self._ask(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return bool(status.get("allowed")) and not status.get("denied")

    async def _ask(self, path: str, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": api_version, "kind": kind, "spec": spec}
        with told():
            answer = await self._cluster.client.call("POST", path, body=body)
        status: dict[str, Any] = answer.get("status", {})
        return status


def _cache[Key, Value]() -> BoundedCache[Key, Value]:
    return BoundedCache(size=MOST_REMEMBERED, seconds=REMEMBERED_SECONDS)
