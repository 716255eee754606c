"""Paceline on a test cluster: its images, what engines need of their node, and the chart."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster import Cluster
from testbed.commands import ROOT, Answer, kubernetes_command, run, shell_library
from testbed.images import VLLM_FOLDER, Image, control_plane_image, engine_image

NAMESPACE = "paceline-system"
CHART = ROOT / "charts" / "paceline"
MODELS_FOLDER = "/var/lib/paceline/models"
DATABASE_FOLDER = "/var/lib/paceline/database"


def node_mounts() -> dict[str, Path]:
    """Return what nodes need for CPU engines: vLLM's packages, and the tiny model that examples/cpu-tiny.yaml names."""
    overlay = "cat .venv-engine-0.32/lib/python3.*/site-packages/paceline_engine_base.pth"
    packages = Path(shell_library(f"bash scripts/engine_env.sh && {overlay}"))
    model = Path(shell_library("bash scripts/model.sh"))
    return {VLLM_FOLDER: packages, f"{MODELS_FOLDER}/tiny": model}


@dataclass(frozen=True)
class Images:
    """Paceline's images, each in one version."""

    control_plane: Image
    engine: Image

    @classmethod
    def build(cls) -> "Images":
        """Build both, or take them from the cache."""
        return cls(control_plane_image(), engine_image())

    def load(self, cluster: Cluster) -> None:
        """Load both into the cluster's node."""
        for image in (self.control_plane, self.engine):
            cluster.node.import_image(image.archive)


def helm(cluster: Cluster, *arguments: object, check: bool = True) -> Answer:
    """Run Helm as the cluster's administrator in Paceline's namespace."""
    command = [kubernetes_command("helm"), "--kubeconfig", cluster.api.kubeconfig, "--namespace", NAMESPACE, *arguments]
    return run(command, environment={"NO_PROXY": "*"}, check=check, seconds=300)


def chart_values(images: Images) -> dict[str, Any]:
    """Return the chart's values for a test cluster: images that are there, and engines with their node's vLLM."""
    repository, tag = images.control_plane.reference.rsplit(":", 1)
    engine_repository, engine_tag = images.engine.reference.rsplit(":", 1)
    return {
        "image": {"repository": repository, "tag": tag},
        "engine": {
            "images": {"cpu": {"repository": engine_repository, "tag": engine_tag}},
            "modelFolders": [MODELS_FOLDER],
        },
        "api": {"database": {"persistence": {"storageClassName": "", "size": "1Gi"}}},
        "testing": {"engineHostMounts": [{"name": "vllm", "hostPath": VLLM_FOLDER, "mountPath": VLLM_FOLDER}]},
    }


def packaged_chart(version: str, folder: Path) -> Path:
    """Package the chart into `folder` as another version of Paceline would be."""
    package = (kubernetes_command("helm"), "package", CHART, "--version", version, "--app-version", version)
    run([*package, "--destination", folder])
    return folder / f"paceline-{version}.tgz"


def install(cluster: Cluster, values: Mapping[str, Any], *, release: str = "paceline", chart: Path = CHART) -> Answer:
    """Install the chart, or upgrade it, and wait until its pods are ready."""
    _offer_volume(cluster, f"{release}-api")
    file = cluster.folder / f"{release}-values.json"
    file.write_text(json.dumps(values))
    options = ("--install", "--create-namespace", "--values", file, "--wait", "--timeout", "3m")
    return helm(cluster, "upgrade", release, chart, *options)


def _offer_volume(cluster: Cluster, claim: str) -> None:
    # No storage provider here: one volume, for the database's claim.
    cluster.node.sandbox.run("install", "-d", "-m", "777", DATABASE_FOLDER)
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "hostPath": {"path": DATABASE_FOLDER},
        "claimRef": {"namespace": NAMESPACE, "name": claim},
    }
    cluster.api.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": spec})
