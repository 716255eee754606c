"""What makes a profile unusable in this cluster, although the API server took it."""

from paceline.operator.api.v1alpha1 import Accelerator
from paceline.operator.specs.container import engine_image
from paceline.operator.specs.engine_command import model_location, problems
from paceline.operator.specs.subject import Subject
from paceline.operator.specs.volumes import allowed_folder
from paceline.operator.specs.workload import is_multi_node


def cluster_problems(subject: Subject, *, has_worker_sets: bool) -> list[str]:
    """Return a sentence for each problem that says what to do; empty when the profile can be built.

    `has_worker_sets` tells whether the cluster serves the LeaderWorkerSet API.
    """
    return [
        *problems(subject.spec),
        *_image_problems(subject),
        *_source_problems(subject),
        *_device_problems(subject),
        *_node_problems(subject, has_worker_sets),
    ]


def _image_problems(subject: Subject) -> list[str]:
    if engine_image(subject):
        return []
    accelerator = subject.spec.engine.accelerator.value
    return [
        f"no image for accelerator {accelerator}: set spec.engine.image, or engine.images.{accelerator} of the operator"
    ]


def _source_problems(subject: Subject) -> list[str]:
    source = subject.spec.model.source
    if not source.startswith("file://"):
        return []
    path, _ = model_location(source)
    folders = subject.config.allowed_file_folders
    if allowed_folder(path, folders):
        return []
    allowed = ", ".join(folders) or "none"
    return [
        f"spec.model.source: {path} lies below no folder that the operator allows (allowed: {allowed}); "
        "use pvc:// or hf://, or add the folder to engine.allowedFileFolders of the operator"
    ]


def _device_problems(subject: Subject) -> list[str]:
    engine = subject.spec.engine
    given = engine.resources.limits.get("nvidia.com/gpu")
    needed = str(engine.parallelism.devices // engine.parallelism.nodes)
    if engine.accelerator is not Accelerator.NVIDIA or given is None or given == needed:
        return []
    return [
        f"spec.engine.resources.limits: nvidia.com/gpu is {given}, but parallelism needs {needed} a node; "
        "remove it (the operator adds it) or change spec.engine.parallelism"
    ]


def _node_problems(subject: Subject, has_worker_sets: bool) -> list[str]:
    if not is_multi_node(subject) or has_worker_sets:
        return []
    return [
        f"spec.engine.parallelism.nodes is {subject.spec.engine.parallelism.nodes}, and this cluster has no "
        "LeaderWorkerSet API: install the LeaderWorkerSet controller, or set nodes to 1"
    ]
