"""The simulating process: `python -P -m paceline.bench.simulator REQUEST.json RESULT.json`, where vLLM is installed."""

import sys
from pathlib import Path

from paceline.bench.simulator.exchange import SimulationRequest


def main(request_file: str, result_file: str) -> None:
    """Simulate what one file asks and write the result to the other: standard output is vLLM's log."""
    request = SimulationRequest.model_validate_json(Path(request_file).read_bytes())
    from paceline.bench.simulator.loop import StalledError
    from paceline.bench.simulator.mixed_phase import simulate

    try:
        result = simulate(request)
    except StalledError as error:
        sys.exit(str(error))
    Path(result_file).write_text(result.model_dump_json(by_alias=True), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
