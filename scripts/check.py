"""Run the parts of `make check` and sum them up: what passed, what failed, and what was skipped and why."""

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
PYTEST = (str(BIN / "python"), "-m", "pytest")
ENGINES = ("0.22.1", "0.32", "0.33")
"""The engines that the contract tests run on: docs/engines.md says what each of them is."""


def engine_pytest(engine: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs tests inside an engine's environment."""
    return (str(ROOT / f".venv-engine-{engine}" / "bin" / "python"), "-P", "-m", "pytest", *arguments)


ENGINE_ENV = ("bash", "scripts/engine_env.sh")
MODEL = ("bash", "scripts/model.sh")
NVRTC_ENV = ("bash", "scripts/nvrtc_env.sh")
KUBERNETES = ("bash", "scripts/build_kubernetes.sh")
CHROMIUM = ("bash", "scripts/apt_install.sh", "chromium", "chromium", "fonts-dejavu-core")
PGBOUNCER = ("bash", "scripts/apt_install.sh", "pgbouncer", "pgbouncer")


@dataclass(frozen=True)
class Part:
    """One part of the check: what prepares the machine for it, and the commands that must all succeed."""

    summary: str
    commands: tuple[tuple[str, ...], ...]
    setup: tuple[tuple[str, ...], ...] = ()


PARTS = {
    "style": Part(
        "format, lint, types, import rules, generated files",
        (
            (str(BIN / "ruff"), "format", "--check", "."),
            (str(BIN / "ruff"), "check", "."),
            (str(BIN / "mypy"),),
            (str(BIN / "lint-imports"),),
            (str(BIN / "python"), "-P", "scripts/generate.py", "--check"),
        ),
    ),
    "unit": Part("pure logic", ((*PYTEST, "tests/unit"),)),
    "contract": Part(
        f"the real vLLM scheduler, step by step, of vLLM {', '.join(ENGINES)}",
        tuple(engine_pytest(engine, "tests/contract") for engine in ENGINES),
        tuple((*ENGINE_ENV, engine) for engine in ENGINES),
    ),
    "engine": Part(
        "a real vLLM engine on CPU", ((*PYTEST, "tests/engine"),), (ENGINE_ENV, (*ENGINE_ENV, "0.22.1"), MODEL)
    ),
    "api": Part("the control API on SQLite and PostgreSQL", ((*PYTEST, "tests/api"),), (PGBOUNCER,)),
    "kernels": Part("the attention kernels", (engine_pytest("0.32", "tests/kernels"),), (ENGINE_ENV, NVRTC_ENV)),
    "charts": Part("the Helm chart", ((*PYTEST, "tests/charts"),), ((*KUBERNETES, "helm"),)),
    "cluster": Part(
        "a real Kubernetes",
        ((*PYTEST, "tests/cluster"),),
        (KUBERNETES, ("bash", "scripts/node_packages.sh"), ENGINE_ENV, MODEL, ("bash", "scripts/base_image.sh")),
    ),
    "browser": Part("the dashboard in real Chromium", ((*PYTEST, "tests/browser"),), (CHROMIUM,)),
}
FAST = ("style", "unit")
"""The parts that need neither an engine nor a cluster."""
LANES = (("style", "unit", "contract", "kernels"), ("api", "charts"))
"""Two sequences that run side by side: neither starts an engine or a cluster, which want both cores for themselves."""

INTERRUPTED = threading.Event()
"""Set on Ctrl-C, which reaches the commands that run by themselves: the lanes then start no further ones."""
NOTICE_SECONDS = 5.0
"""How long a command that failed may have done so for a Ctrl-C that the main thread has not noted yet."""

_TALLY = re.compile(r"(\d+) (passed|failed|skipped|error|errors)\b")


@dataclass
class Outcome:
    """How a part ended."""

    name: str
    ok: bool = True
    seconds: float = 0.0
    tally: dict[str, int] = field(default_factory=dict)
    skips: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the part's line of the summary."""
        counts = ", ".join(f"{number} {what}" for what, number in self.tally.items()) or "no test counts"
        return f"{'ok    ' if self.ok else 'FAILED'}  {self.name:<10} {self.seconds:6.1f} s  {counts}"


def run_command(command: tuple[str, ...], outcome: Outcome, say: Callable[[str], object]) -> int:
    """Run one command, passing its output on, and read pytest's counts and skip reasons from it."""
    say(f"$ {' '.join(Path(word).name if word.startswith(str(ROOT)) else word for word in command)}")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        last_tally = ""
        for line in process.stdout:
            say(line.rstrip("\n"))
            if line.startswith("SKIPPED"):
                outcome.skips.append(line.strip())
            if " in " in line and _TALLY.search(line):
                last_tally = line
        status = process.wait()
    for number, what in _TALLY.findall(last_tally):
        kind = what.removesuffix("s") if what == "errors" else what
        outcome.tally[kind] = outcome.tally.get(kind, 0) + int(number)
    return status


def run_part(name: str, say: Callable[[str], object]) -> Outcome:
    """Run a part to its end or its first failing set-up; a part of tests that runs no test has failed."""
    part, outcome, started = PARTS[name], Outcome(name), time.monotonic()
    say(f"\n=== {name}: {part.summary} ===")
    for command in part.setup:
        if run_command(command, outcome, say) != 0:
            outcome.ok = False
            break
    else:
        for command in part.commands:
            if run_command(command, outcome, say) != 0:
                outcome.ok = False
                if INTERRUPTED.wait(NOTICE_SECONDS):
                    break
        if any("pytest" in command for command in part.commands) and not outcome.tally.get("passed"):
            outcome.ok = False
    outcome.seconds = time.monotonic() - started
    return outcome


def tell(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def run_lane(names: Sequence[str]) -> list[Outcome]:
    """Run parts one after the other beside another lane; each part's output is printed whole when the part ends."""
    outcomes = []
    for name in names:
        if INTERRUPTED.is_set():
            break
        tell(f"... {name} runs")
        lines: list[str] = []
        outcomes.append(run_part(name, lines.append))
        tell("\n".join(lines))
    return outcomes


def run_parts(names: Sequence[str]) -> list[Outcome]:
    """Run the parts: those of the lanes side by side where both lanes have some, the others one by one."""
    lanes = [[name for name in lane if name in names] for lane in LANES]
    together = [name for lane in lanes for name in lane] if all(lanes) else []
    outcomes: list[Outcome] = []
    if together:
        with ThreadPoolExecutor(len(lanes)) as pool:
            try:
                outcomes += [outcome for lane in pool.map(run_lane, lanes) for outcome in lane]
            except KeyboardInterrupt:
                INTERRUPTED.set()
                raise
    return outcomes + [run_part(name, tell) for name in names if name not in together]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="examples:\n  scripts/check.py                    all parts\n  scripts/check.py style unit\n"
        "  scripts/check.py --forbid-skips     as CI runs it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="the parts to run (default: all)")
    parser.add_argument("--fast", action="store_true", help=f"only {' and '.join(FAST)}")
    parser.add_argument("--forbid-skips", action="store_true", help="treat a skipped test as a failure")
    arguments = parser.parse_args()
    if arguments.forbid_skips:
        os.environ["PACELINE_FORBID_SKIPS"] = "1"
    names = FAST if arguments.fast else arguments.parts or list(PARTS)
    started = time.monotonic()
    outcomes = run_parts(names)

    print("\n=== summary ===")
    for outcome in outcomes:
        print(outcome.line())
    skips = [skip for outcome in outcomes for skip in outcome.skips]
    if skips:
        print("\nskipped, and why:", *skips, sep="\n  ")
    totals = {
        what: sum(outcome.tally.get(what, 0) for outcome in outcomes)
        for what in ("passed", "failed", "error", "skipped")
    }
    failed = totals["failed"] + totals["error"]
    seconds = time.monotonic() - started
    print(f"\n{totals['passed']} passed, {failed} failed, {totals['skipped']} skipped, in {seconds:.0f} s")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def end(work: Callable[[], int]) -> NoReturn:
    """Exit with what `work` returns, or with 130 on Ctrl-C."""
    try:
        sys.exit(work())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    end(main)
