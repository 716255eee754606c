"""What can be found out before an engine is started: a missing model, a port in use, an interpreter without vLLM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline import __version__
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.local.ports import PortRequest, choose_port, holder
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.specs.engine_command import model_location

CHECKOUT: Final = Path(__file__).resolve().parents[2]
"""The folder above cli/: the checkout, where Paceline is installed from one."""

DEFAULT_ENGINE: Final = CHECKOUT / ".venv-engine-0.32" / "bin" / "python"
MODEL_CONFIGS: Final = ("config.json", "params.json")
WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")

_PROBE: Final = """
import importlib.util, json
found = {name: importlib.util.find_spec(name) is not None for name in ("vllm", "paceline")}
if found["paceline"]:
    import paceline
    found["version"] = paceline.__version__
print(json.dumps(found))
"""


def check_model(spec: InferenceProfileSpec) -> None:
    """Check that the model's folder is there and looks like a model. Raises CliError."""
    source = spec.model.source
    if source.startswith("pvc://"):
        raise _invalid(
            f"spec.model.source: {source} names a volume claim, which only a cluster has",
            "Give the model's folder on this machine: file:///path/to/model.",
        )
    if not source.startswith("file://"):
        return
    folder = Path(model_location(source)[0])
    if folder.is_file() and folder.suffix == ".gguf":
        return
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise _invalid(f"spec.model.source: the folder {folder} {what}", "Check the path, or download the model there.")
    if not any((folder / name).is_file() for name in MODEL_CONFIGS):
        raise _invalid(
            f"spec.model.source: {folder} holds no config.json, so it is no model",
            "Name the folder that holds config.json beside the weights.",
        )
    without_weights = not any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    if without_weights and not any(argument.startswith("--load-format") for argument in spec.engine.extra_args):
        raise _invalid(
            f"spec.model.source: {folder} holds no weights ({', '.join(WEIGHTS)})",
            "Was the download complete?",
        )


def ignored_fields(spec: InferenceProfileSpec) -> Iterator[str]:
    """Yield a sentence for each field of the profile that a local run can't honour."""
    engine = spec.engine
    if engine.replicas not in (None, 1):
        yield f"spec.engine.replicas is {engine.replicas}: a local run always starts one engine"
    cluster_only = {
        "image": engine.image,
        "imagePullSecrets": engine.image_pull_secrets,
        "nodeSelector": engine.node_selector,
        "tolerations": engine.tolerations,
        "resources": engine.resources.requests or engine.resources.limits,
    }
    for name, value in cluster_only.items():
        if value:
            yield f"spec.engine.{name} has no effect on a local run"
    if spec.model.token_secret_ref is not None:
        yield "spec.model.tokenSecretRef has no effect on a local run: set HF_TOKEN in the environment instead"


def choose_ports(requests: Mapping[str, PortRequest]) -> dict[str, int]:
    """Return a port for each request. Raises CliError for one in use, with its holder where that can be told."""
    chosen: dict[str, int] = {}
    for key, request in requests.items():
        if request.port and request.port in chosen.values():
            raise _invalid(f"port {request.port} is asked for twice", f"Give another one with {request.option}.")
        try:
            port = choose_port(request)
            while port in chosen.values():
                port = choose_port(request)
        except OSError as error:
            raise _port_error(request, error) from None
        chosen[key] = port
    return chosen


def _port_error(request: PortRequest, error: OSError) -> CliError:
    who = holder(request.port)
    by = f" by {who}" if who else ""
    return CliError(
        f"{request.what} can't listen on {request.host}:{request.port}: {error.strerror}{by}",
        advice=f"Stop that program, or choose another port with {request.option} (0 takes any free one).",
        code=ExitCode.BUSY,
    )


@dataclass(frozen=True)
class EnginePython:
    """An interpreter that has vLLM and Paceline, and a warning where something about it is odd."""

    path: str
    warning: str | None


def find_engine_python(chosen: Path | None) -> EnginePython:
    """Return the engine's interpreter: `chosen`, PACELINE_ENGINE_PYTHON, the checkout's, or this one.

    Raises CliError when it can't run an engine.
    """
    named = os.environ.get("PACELINE_ENGINE_PYTHON")
    if chosen is not None:
        path, origin = chosen, "given with --engine-python"
    elif named:
        path, origin = Path(named), "named by PACELINE_ENGINE_PYTHON"
    elif DEFAULT_ENGINE.exists():
        path, origin = DEFAULT_ENGINE, "the checkout's engine environment"
    else:
        path, origin = Path(sys.executable), "the interpreter that runs this command"
    # Not resolved: the path of a virtual environment's interpreter, a link, is what makes it that environment.
    path = path.expanduser().absolute()
    found = _probe(path, origin)
    for package in ("vllm", "paceline"):
        if not found[package]:
            raise _engine_error(f"the engine's interpreter {path} ({origin}) has no {package}")
    version = found["version"]
    odd = f"the engine's environment has Paceline {version}, this is {__version__}" if version != __version__ else None
    return EnginePython(str(path), odd)


def _probe(path: Path, origin: str) -> dict[str, object]:
    try:
        answer = subprocess.run(
            [path, "-P", "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True, cwd="/"
        )
        found = json.loads(answer.stdout)
    except OSError as error:
        raise _engine_error(f"the engine's interpreter {path} ({origin}) can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _engine_error(f"the engine's interpreter {path} ({origin}) did not answer within 60 s") from None
    except (subprocess.CalledProcessError, ValueError):
        raise _engine_error(f"the engine's interpreter {path} ({origin}) is no working Python") from None
    return dict(found)


def _engine_error(message: str) -> CliError:
    return _invalid(
        message,
        "Build one with `make engine-env`, or name an interpreter that has vLLM and Paceline with --engine-python.",
    )


def _invalid(message: str, advice: str) -> CliError:
    return CliError(message, advice=advice, code=ExitCode.INVALID)
