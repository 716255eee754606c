"""The check's two lanes: what Ctrl-C ends, and what a failure leaves running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = """
import signal
import sys
# Programs that a shell starts in the background inherit a SIGINT that is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, "scripts")
import check

def part(*commands):
    return check.Part("made up", tuple(("sh", "-c", command) for command in commands))

check.LANES = (("slow", "never"), ("quick",))
check.PARTS = {"slow": part(SLOW, "touch AGAIN"), "never": part("touch NEXT"), "quick": part("true")}
check.end(check.main)
"""


def start(tmp_path: Path, slow: str) -> subprocess.Popen[str]:
    code = CHECK.replace("SLOW", repr(slow)).replace("AGAIN", str(tmp_path / "again"))
    code = code.replace("NEXT", str(tmp_path / "next"))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def test_interrupt_ends_both_lanes_with_the_commands_that_run(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    with start(tmp_path, f"echo > {ready}; exec sleep 120") as process:
        ready.read_text()
        # As a terminal does: to the check and to what it runs.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "\ninterrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_failure_in_one_lane_leaves_every_other_part_its_turn(tmp_path: Path) -> None:
    with start(tmp_path, "exit 3") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "next"]
    assert [line.split()[:2] for line in said[said.index("=== summary") :].splitlines()[1:4]] == [
        ["FAILED", "slow"],
        ["ok", "never"],
        ["ok", "quick"],
    ]
