"""The engine's container."""

from dataclasses import dataclass, replace
from typing import Any

from paceline.operator.api.v1alpha1 import Accelerator
from paceline.operator.specs.admin_token import TOKEN_KEY
from paceline.operator.specs.engine_command import EngineLaunch, engine_command
from paceline.operator.specs.probes import engine_probes
from paceline.operator.specs.subject import Subject
from paceline.operator.specs.volumes import CACHE_FOLDER, SETTINGS_FILE, TOKEN_FOLDER, engine_volumes

_CACHES = {
    "HOME": CACHE_FOLDER,
    "HF_HOME": f"{CACHE_FOLDER}/huggingface",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_FOLDER}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE_FOLDER}/triton",
    "VLLM_CACHE_ROOT": f"{CACHE_FOLDER}/vllm",
    "VLLM_CONFIG_ROOT": f"{CACHE_FOLDER}/vllm-config",
    "XDG_CACHE_HOME": CACHE_FOLDER,
}
"""Writable places: the root file system is read only, and a random user has no home."""


@dataclass(frozen=True)
class NodePart:
    """What one node of a multi-node engine adds to the command; `argv` may name variables as `$(NAME)`."""

    argv: tuple[str, ...]
    serving: bool


def literal(text: str) -> str:
    """Return `text` so that Kubernetes passes it on unchanged: it would expand `$(NAME)` and shorten `$$`."""
    return text.replace("$", "$$")


def engine_image(subject: Subject) -> str | None:
    """Return the engine's image: the profile's, or the operator's for the accelerator, or None."""
    engine = subject.spec.engine
    return engine.image or subject.config.images.get(engine.accelerator)


def engine_container(subject: Subject, node: NodePart | None = None) -> dict[str, Any]:
    """Return the engine's container, or that of one node's part of it.

    Raises ValueError for a profile that `problems` refuses.
    """
    serving = node is None or node.serving
    command = engine_command(subject.spec, _launch(subject, serving))
    return {
        "name": "engine",
        "image": engine_image(subject),
        "command": [*(literal(word) for word in command.argv), *(node.argv if node else ())],
        "env": [*_literal_env(_CACHES | command.env), *_token_env(subject)],
        **(_serving_fields(subject) if serving else {}),
        "resources": _resources(subject),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # The last lines of a crashed engine's log reach the pod's status, and from there the profile's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount() for volume in engine_volumes(subject)],
    }


def _launch(subject: Subject, serving: bool) -> EngineLaunch:
    config = subject.config
    launch = EngineLaunch(
        python=config.python,
        host="0.0.0.0",
        port=config.serving_port,
        admin_host="0.0.0.0",
        admin_port=config.admin_port,
        admin_token_file=f"{TOKEN_FOLDER}/{TOKEN_KEY}",
        settings_file=SETTINGS_FILE,
        shutdown_seconds=subject.spec.rollout.drain_seconds,
    )
    # Only vLLM's command line knows engines without a server.
    return launch if serving else replace(launch, module=("vllm.entrypoints.cli.main", "serve"))


def _serving_fields(subject: Subject) -> dict[str, Any]:
    # Requests must stop coming in before the engine stops taking them.
    drain = {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}} if subject.spec.rollout.drain_seconds else {}
    return {
        "ports": [
            {"name": "http", "containerPort": subject.config.serving_port, "protocol": "TCP"},
            {"name": "admin", "containerPort": subject.config.admin_port, "protocol": "TCP"},
        ],
        **engine_probes(subject),
        **drain,
    }


def _literal_env(variables: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": literal(value)} for name, value in sorted(variables.items())]


def _token_env(subject: Subject) -> list[dict[str, Any]]:
    reference = subject.spec.model.token_secret_ref
    if reference is None:
        return []
    source = {"secretKeyRef": {"name": reference.name, "key": reference.key}}
    return [{"name": "HF_TOKEN", "valueFrom": source}]


def _resources(subject: Subject) -> dict[str, Any]:
    engine = subject.spec.engine
    requests, limits = dict(engine.resources.requests), dict(engine.resources.limits)
    # Whoever names a GPU resource himself, a MIG slice for one, must not get whole GPUs beside it.
    names_gpu = any(name.startswith("nvidia.com/") for name in (*requests, *limits))
    if engine.accelerator is Accelerator.NVIDIA and not names_gpu:
        limits["nvidia.com/gpu"] = str(engine.parallelism.devices // engine.parallelism.nodes)
    return {
        kind: dict(sorted(amounts.items())) for kind, amounts in (("requests", requests), ("limits", limits)) if amounts
    }
