"""The engine's command line, built from a profile: the same for a local run and for a pod."""

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import Accelerator, EngineSpec, InferenceProfileSpec, ModelSpec, Toggle
from paceline.operator.specs.engine_args import refused_args, refused_env

SCHEDULER_CLASS: Final = "paceline.engine_ext.scheduler.PacedScheduler"
MODEL_MOUNT: Final = "/models"


@dataclass(frozen=True)
class EngineLaunch:
    """Where an engine runs: the parts of its command line that are the place's, not the profile's."""

    python: str
    host: str
    port: int
    admin_host: str
    admin_port: int
    admin_token_file: str
    settings_file: str
    shutdown_seconds: int = 0
    """How long the engine finishes its streams once it is asked to end; 0 ends them at once."""
    module: tuple[str, ...] = ("vllm.entrypoints.openai.api_server",)
    """vLLM's module to run, with its subcommand where it has some."""


@dataclass(frozen=True)
class EngineCommand:
    """An engine's argument vector and the environment variables that Paceline adds to it."""

    argv: tuple[str, ...]
    env: dict[str, str]


def model_location(source: str) -> tuple[str, str | None]:
    """Return what the engine loads for a model source, and the Hugging Face revision where the source names one.

    A volume claim's path is the path below the folder where the pod mounts the claim.
    """
    scheme, _, rest = source.partition("://")
    if scheme == "hf":
        name, _, revision = rest.partition("@")
        return name, revision or None
    if scheme == "pvc":
        _, _, path = rest.partition("/")
        return str(PurePosixPath(MODEL_MOUNT) / path), None
    return unquote(rest), None


def problems(spec: InferenceProfileSpec) -> list[str]:
    """Return what makes a well-formed spec unusable, each as a sentence that says what to do; empty when nothing."""
    return [*refused_args(spec.engine.extra_args), *refused_env(variable.name for variable in spec.engine.env)]


def engine_command(spec: InferenceProfileSpec, launch: EngineLaunch) -> EngineCommand:
    """Build the command that starts the profile's engine. Raises ValueError for a spec with problems."""
    found = problems(spec)
    if found:
        raise ValueError("\n".join(found))
    argv = [
        # -P: a folder named `operator` in the working directory must not shadow the standard library's module.
        *(launch.python, "-P", "-m", *launch.module),
        *("--host", launch.host, "--port", str(launch.port)),
        *_model_args(spec.model),
        *_engine_args(spec.engine),
        *("--scheduler-cls", SCHEDULER_CLASS),
        *_option("--shutdown-timeout", launch.shutdown_seconds or None),
        *spec.engine.extra_args,
    ]
    return EngineCommand(tuple(argv), _environment(spec, launch))


def settings_document(settings: LiveSettings) -> str:
    """Return the text of the settings file that an engine reads when it starts."""
    return settings.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def _model_args(model: ModelSpec) -> list[str]:
    location, revision = model_location(model.source)
    return [
        *("--model", location),
        *_option("--revision", revision),
        *_option("--served-model-name", model.served_name),
        *_option("--max-model-len", model.max_model_len),
        *_option("--dtype", None if model.dtype == "auto" else model.dtype),
        *_option("--quantization", model.quantization),
    ]


def _engine_args(engine: EngineSpec) -> list[str]:
    parallelism, cache = engine.parallelism, engine.kv_cache
    percent = cache.memory_utilization_percent
    return [
        *_option("--tensor-parallel-size", _unless_one(parallelism.tensor)),
        *_option("--pipeline-parallel-size", _unless_one(parallelism.pipeline)),
        *_option("--data-parallel-size", _unless_one(parallelism.data)),
        *_option("--max-num-batched-tokens", engine.max_num_batched_tokens),
        *_option("--max-num-seqs", engine.max_num_seqs),
        *_option("--gpu-memory-utilization", None if percent is None else f"0.{percent:02d}"),
        *_option("--kv-cache-dtype", None if cache.dtype == "auto" else cache.dtype),
        *_option("--block-size", cache.block_size_tokens),
        "--enable-prefix-caching" if engine.prefix_caching is Toggle.ENABLED else "--no-enable-prefix-caching",
        *_option("--speculative-config", _speculative_config(engine)),
    ]


def _speculative_config(engine: EngineSpec) -> str | None:
    speculative = engine.speculative
    if speculative is None:
        return None
    config: dict[str, str | int] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.draft_tokens,
    }
    if speculative.draft_model is not None:
        config["model"] = speculative.draft_model
    return json.dumps(config)


def _environment(spec: InferenceProfileSpec, launch: EngineLaunch) -> dict[str, str]:
    env = {
        "VLLM_PLUGINS": "paceline",
        "PACELINE_ADMIN_HOST": launch.admin_host,
        "PACELINE_ADMIN_PORT": str(launch.admin_port),
        "PACELINE_ADMIN_TOKEN_FILE": launch.admin_token_file,
        "PACELINE_SETTINGS_FILE": launch.settings_file,
        "PACELINE_PAGE_GATE": spec.page_gate.mode.value,
    }
    if spec.engine.accelerator is Accelerator.CPU:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(spec.engine.kv_cache.size_gibibytes or 1)
    if not spec.model.source.startswith("hf://"):
        env["HF_HUB_OFFLINE"] = "1"
    return env | {variable.name: variable.value for variable in spec.engine.env}


def _option(flag: str, value: str | int | None) -> tuple[str, ...]:
    return () if value is None else (flag, str(value))


def _unless_one(count: int) -> int | None:
    return None if count == 1 else count
