"""Subjects for the builders' tests."""

from typing import Any

from paceline.operator.api.v1alpha1 import Accelerator, InferenceProfile, InferenceProfileSpec
from paceline.operator.config import EngineConfig, PodSelector
from paceline.operator.specs.subject import Subject

UID = "6f2b8d1e-5a35-4d6e-9d35-0a2f0c6f7a11"
CONFIG = EngineConfig(
    images={Accelerator.CPU: "registry.example/paceline-engine-cpu:1", Accelerator.NVIDIA: "registry.example/engine:1"},
    allowed_file_folders=["/var/lib/paceline/models"],
    admin_clients=[PodSelector(namespace="paceline-system", labels={"app.kubernetes.io/part-of": "paceline"})],
    pod_monitor=True,
)


def subject(profile: dict[str, Any], config: EngineConfig = CONFIG) -> Subject:
    """Return the subject of a profile as the API server would hand it out."""
    parsed = InferenceProfile.model_validate(profile)
    return Subject(parsed.metadata.namespace, parsed.metadata.name, UID, parsed.spec, config)


def subject_of(spec: dict[str, Any] | None = None, *, name: str = "web", config: EngineConfig = CONFIG) -> Subject:
    """Return a subject with a small spec; `spec` is laid over it, one level deep."""
    base: dict[str, Any] = {"model": {"source": "hf://org/name"}, "engine": {"accelerator": "CPU"}}
    merged = {key: {**base.get(key, {}), **(spec or {}).get(key, {})} for key in {**base, **(spec or {})}}
    return Subject("team", name, UID, InferenceProfileSpec.model_validate(merged), config)
