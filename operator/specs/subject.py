"""What every builder starts from: the profile, its identity in the cluster, and the operator's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.operator.api.v1alpha1 import API_VERSION, KIND, InferenceProfileSpec
from paceline.operator.config import EngineConfig
from paceline.operator.specs.names import base_name, object_labels, selector_labels

Manifest = dict[str, Any]
"""A Kubernetes object as the API server takes it."""


@dataclass(frozen=True)
class Subject:
    """A profile in the cluster."""

    namespace: str
    name: str
    uid: str
    spec: InferenceProfileSpec
    config: EngineConfig

    @property
    def base(self) -> str:
        """Name of the Service and of the workload."""
        return base_name(self.name)

    @property
    def settings_name(self) -> str:
        """Name of the ConfigMap with the live settings."""
        return f"{self.base}-settings"

    @property
    def token_name(self) -> str:
        """Name of the Secret with the admin token."""
        return f"{self.base}-admin-token"

    @property
    def account_name(self) -> str:
        """Name of the engine pods' ServiceAccount."""
        return f"{self.base}-engine"

    @property
    def selector(self) -> dict[str, str]:
        """Labels by which the engine pods are found."""
        return selector_labels(self.name)

    def manifest(
        self, api_version: str, kind: str, name: str, *, annotations: Mapping[str, str] | None = None, **fields: Any
    ) -> Manifest:
        """Return an object that belongs to the profile and goes with it."""
        metadata: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": object_labels(self.name),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
