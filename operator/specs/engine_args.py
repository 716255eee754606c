"""Which of vLLM's arguments a profile may pass through `engine.extraArgs`, and which have a field of their own."""

from collections.abc import Iterable, Mapping
from typing import Final

OWNED: Final[Mapping[str, str]] = {
    "--model": "spec.model.source",
    "--served-model-name": "spec.model.servedName",
    "--max-model-len": "spec.model.maxModelLen",
    "--dtype": "spec.model.dtype",
    "--quantization": "spec.model.quantization",
    "-q": "spec.model.quantization",
    "--revision": "spec.model.source (hf://org/name@revision)",
    "--tensor-parallel-size": "spec.engine.parallelism.tensor",
    "-tp": "spec.engine.parallelism.tensor",
    "--pipeline-parallel-size": "spec.engine.parallelism.pipeline",
    "-pp": "spec.engine.parallelism.pipeline",
    "--data-parallel-size": "spec.engine.parallelism.data",
    "-dp": "spec.engine.parallelism.data",
    "--max-num-batched-tokens": "spec.engine.maxNumBatchedTokens",
    "--max-num-seqs": "spec.engine.maxNumSeqs",
    "--gpu-memory-utilization": "spec.engine.kvCache.memoryUtilizationPercent",
    "--kv-cache-dtype": "spec.engine.kvCache.dtype",
    "--block-size": "spec.engine.kvCache.blockSizeTokens",
    "--enable-prefix-caching": "spec.engine.prefixCaching",
    "--no-enable-prefix-caching": "spec.engine.prefixCaching",
    "--speculative-config": "spec.engine.speculative",
    "-sc": "spec.engine.speculative",
    "--spec-method": "spec.engine.speculative.method",
    "--spec-model": "spec.engine.speculative.draftModel",
    "--spec-tokens": "spec.engine.speculative.draftTokens",
    "--nnodes": "spec.engine.parallelism.nodes",
    "-n": "spec.engine.parallelism.nodes",
    "--shutdown-timeout": "spec.rollout.drainSeconds",
}
"""Arguments that a field of the profile sets."""

RESERVED: Final[Mapping[str, str]] = {
    "--host": "Paceline chooses the engine's address",
    "--port": "Paceline chooses the engine's port",
    "--uds": "Paceline chooses the engine's address",
    "--config": "an argument file could hide arguments that Paceline sets",
    "--scheduler-cls": "Paceline's own scheduler paces the engine",
    "--middleware": "Paceline's admin routes are set by its plugin",
    "--max-num-partial-prefills": "vLLM's scheduler refuses to start with it; use spec.pacing to share steps",
    "--max-long-partial-prefills": "vLLM's scheduler refuses to start with it; use spec.pacing to share steps",
    "--headless": "multi-node engines are built from spec.engine.parallelism",
    "--node-rank": "multi-node engines are built from spec.engine.parallelism",
    "-r": "multi-node engines are built from spec.engine.parallelism",
    "--master-addr": "multi-node engines are built from spec.engine.parallelism",
    "--master-port": "multi-node engines are built from spec.engine.parallelism",
    "--api-server-count": "one API server keeps the admin answers complete",
}
"""Arguments that no profile may set, with the reason."""

RESERVED_ENV: Final[Mapping[str, str]] = {
    "VLLM_PLUGINS": "Paceline lists its own plugin there",
    "VLLM_CPU_KVCACHE_SPACE": "use spec.engine.kvCache.sizeGibibytes",
    "PYTHONPATH": "it could shadow the engine's packages",
}
"""Environment variables that no profile may set, with the reason; all that start with PACELINE_ as well."""


def flag_of(argument: str) -> str | None:
    """Return the flag that an argument names, without its value and in vLLM's dashed spelling; None for a value."""
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
        return None
    name = argument.split("=", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _is_abbreviation_of(flag: str, known: Iterable[str]) -> str | None:
    # argparse takes any unambiguous prefix of a long option for the option itself.
    matches = [name for name in known if flag.startswith("--") and len(flag) > 2 and name.startswith(flag)]
    return min(matches, key=len) if matches else None


def refused_args(extra_args: Iterable[str]) -> list[str]:
    """Return a message for each argument that `engine.extraArgs` may not carry, in the order given."""
    messages = []
    for argument in extra_args:
        flag = flag_of(argument)
        if flag is None:
            continue
        owned = flag if flag in OWNED else _is_abbreviation_of(flag, OWNED)
        reserved = flag if flag in RESERVED else _is_abbreviation_of(flag, RESERVED)
        if owned:
            messages.append(f"spec.engine.extraArgs: {flag} is set by {OWNED[owned]}; use that field instead")
        elif reserved:
            messages.append(f"spec.engine.extraArgs: {flag} is not allowed: {RESERVED[reserved]}")
    return messages


def refused_env(names: Iterable[str]) -> list[str]:
    """Return a message for each environment variable that `engine.env` may not carry, in the order given."""
    messages = []
    for name in names:
        if name in RESERVED_ENV:
            messages.append(f"spec.engine.env: {name} is not allowed: {RESERVED_ENV[name]}")
        elif name.startswith("PACELINE_"):
            messages.append(f"spec.engine.env: {name} is not allowed: the prefix PACELINE_ is Paceline's own")
    return messages
