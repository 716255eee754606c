"""Run the benchmarks that the README quotes, keep each one's result, and print what was measured against its target.

A script prints one JSON object as its last line; it is written to .evidence/NAME.json.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".evidence"
SCRIPTS = (
    "scheduler_overhead",
    "live_change",
    "pacing_frontier",
    "simulate_seeds",
    "slo_attainment",
    "coalescing_ttft",
    "page_gate",
    "operator_scale",
    "hot_change_cluster",
)


def run(name: str, *, quick: bool) -> dict[str, Any] | None:
    """Run one benchmark, passing its output through, and return its result; None where it gave none."""
    print(f"\n=== {name} ===", flush=True)
    command = [sys.executable, f"benchmarks/{name}.py", *(["--quick"] if quick else [])]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    if not last.startswith("{"):
        print(f"error: {name} ended with {process.returncode} and printed no result", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(last)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="examples:\n  make evidence                 all, in full\n  make evidence QUICK=1         shorter runs\n"
        "  scripts/evidence.py live_change",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, wider spread")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(SCRIPTS)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    results = {name: run(name, quick=arguments.quick) for name in arguments.names or SCRIPTS}

    print("\n=== targets ===")
    complete = True
    for name, result in results.items():
        complete &= result is not None
        for what, target in (result or {"targets": {}})["targets"].items():
            mark = "met   " if target["met"] else "MISSED"
            print(f"{mark}  {name}: {what}: {target['measured']} (target {target['target']})")
    return 0 if complete else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
