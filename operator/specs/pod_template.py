"""The template of an engine pod, and the hash that tells one template from another."""

import hashlib
import json
from typing import Any, Final

from paceline.operator.specs.container import NodePart, engine_container
from paceline.operator.specs.names import ROLE_LABEL, TEMPLATE_LABEL, object_labels
from paceline.operator.specs.subject import Manifest, Subject
from paceline.operator.specs.volumes import engine_volumes

_STOP_MARGIN_SECONDS: Final = 30


def pod_template(subject: Subject, *, node: NodePart | None = None) -> Manifest:
    """Return the pod template with its hash as a label, from which the operator knows the pods of this template."""
    spec = _pod_spec(subject, node)
    roles = {} if node is None else {ROLE_LABEL: "leader" if node.serving else "worker"}
    labels = {**object_labels(subject.name), **roles}
    return {"metadata": {"labels": {**labels, TEMPLATE_LABEL: template_hash(spec)}}, "spec": spec}


def template_hash(pod_spec: Manifest) -> str:
    """Return a short hash of a pod's spec."""
    return hashlib.sha256(json.dumps(pod_spec, sort_keys=True).encode()).hexdigest()[:12]


def _pod_spec(subject: Subject, node: NodePart | None) -> Manifest:
    engine = subject.spec.engine
    pull_secrets = [*(secret.name for secret in engine.image_pull_secrets), *subject.config.image_pull_secrets]
    optional: dict[str, Any] = {
        "imagePullSecrets": [{"name": name} for name in dict.fromkeys(pull_secrets)],
        "nodeSelector": engine.node_selector,
        "tolerations": [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in engine.tolerations],
    }
    return {
        "serviceAccountName": subject.account_name,
        "automountServiceAccountToken": False,
        # A Service called `vllm` would set VLLM_PORT, which the engine reads as its own.
        "enableServiceLinks": False,
        "securityContext": _pod_security(subject),
        "terminationGracePeriodSeconds": subject.spec.rollout.drain_seconds + _STOP_MARGIN_SECONDS,
        "containers": [engine_container(subject, node)],
        "volumes": [volume.volume() for volume in engine_volumes(subject)],
        **{name: value for name, value in optional.items() if value},
    }


def _pod_security(subject: Subject) -> dict[str, Any]:
    config = subject.config
    user = {} if config.run_as_user is None else {"runAsUser": config.run_as_user, "runAsGroup": config.run_as_user}
    # OnRootMismatch: changing the owner of a volume of weights takes minutes and is needed once.
    group = {} if config.fs_group is None else {"fsGroup": config.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **user, **group}
