"""The workload of a profile: a Deployment of engines, or a LeaderWorkerSet where an engine spans nodes."""

from typing import Any, Final

from paceline.operator.api.v1alpha1 import GROUP, RolloutStrategy
from paceline.operator.specs.container import NodePart
from paceline.operator.specs.names import TEMPLATE_LABEL
from paceline.operator.specs.pod_template import pod_template
from paceline.operator.specs.subject import Manifest, Subject

COLD_SPEC_ANNOTATION: Final = f"{GROUP}/cold-spec"
TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"
REPLICAS_ANNOTATION: Final = f"{GROUP}/replicas"

LWS_GROUP: Final = "leaderworkerset.x-k8s.io"
LWS_API_VERSION: Final = f"{LWS_GROUP}/v1"
_RENDEZVOUS_PORT: Final = "29500"


def is_multi_node(subject: Subject) -> bool:
    """Tell whether one engine of the profile spans several nodes."""
    return subject.spec.engine.parallelism.nodes > 1


def engine_template(subject: Subject) -> Manifest:
    """Return the part of the workload that engine pods are made from; applied only when a cold setting changed."""
    if not is_multi_node(subject):
        spec: Manifest = {"selector": {"matchLabels": subject.selector}, "template": pod_template(subject)}
        return subject.manifest("apps/v1", "Deployment", subject.base, spec=spec)
    return subject.manifest(
        LWS_API_VERSION,
        "LeaderWorkerSet",
        subject.base,
        spec={
            "leaderWorkerTemplate": {
                "size": subject.spec.engine.parallelism.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template(subject, node=_node(subject, "0", serving=True)),
                # The set numbers a group's pods; the leader, number 0, is the one that answers requests.
                "workerTemplate": pod_template(subject, node=_node(subject, "$(LWS_WORKER_INDEX)", serving=False)),
            }
        },
    )


def workload_frame(subject: Subject, *, replicas: int | None) -> Manifest:
    """Return the part of the workload that never restarts an engine; None leaves its replicas to another owner."""
    count = {} if replicas is None else {"replicas": replicas}
    kind, version = ("LeaderWorkerSet", LWS_API_VERSION) if is_multi_node(subject) else ("Deployment", "apps/v1")
    rest = _set_rollout(subject) if is_multi_node(subject) else _deployment_rollout(subject)
    return subject.manifest(version, kind, subject.base, spec={**count, **rest})


def template_hash_of(manifest: Manifest) -> str:
    """Return the hash of the pod template in what `engine_template` built; of the leader's where there are two."""
    spec = manifest["spec"]
    template = spec.get("template") or spec["leaderWorkerTemplate"]["leaderTemplate"]
    return str(template["metadata"]["labels"][TEMPLATE_LABEL])


def _node(subject: Subject, rank: str, *, serving: bool) -> NodePart:
    nodes = str(subject.spec.engine.parallelism.nodes)
    address = ("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", _RENDEZVOUS_PORT)
    headless = () if serving else ("--headless",)
    return NodePart(("--nnodes", nodes, "--node-rank", rank, *address, *headless), serving)


def _deployment_rollout(subject: Subject) -> dict[str, Any]:
    rollout = subject.spec.rollout
    strategy: dict[str, Any] = {"type": rollout.strategy.value}
    if rollout.strategy is RolloutStrategy.ROLLING_UPDATE:
        strategy["rollingUpdate"] = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {
        "strategy": strategy,
        "revisionHistoryLimit": 2,
        # Kubernetes' ten minutes would call a slow model load a failure.
        "progressDeadlineSeconds": rollout.start_seconds + 600,
    }


def _set_rollout(subject: Subject) -> dict[str, Any]:
    rollout = subject.spec.rollout
    rolling = rollout.strategy is RolloutStrategy.ROLLING_UPDATE
    configuration = {
        "maxSurge": rollout.max_surge if rolling else 0,
        "maxUnavailable": rollout.max_unavailable if rolling else max(1, subject.spec.engine.replicas),
    }
    return {"rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": configuration}}
