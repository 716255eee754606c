"""`make cluster` leaves a cluster running, and `make cluster-down` leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER_TESTS = Path(__file__).parents[1]


def run_testbed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "testbed", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(CLUSTER_TESTS)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_a_developers_cluster_outlives_its_command_until_it_is_taken_down(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # A short path: it holds sockets.
    folder = tmp_path_factory.mktemp("dev") / "c"
    try:
        started = run_testbed("up", "--bare", "--folder", folder)
        assert started.returncode == 0, started.stderr
        script = f"{started.stdout}\nkubectl get nodes --no-headers; helm version --template '{{{{.Version}}}}'"
        seen = subprocess.run(["bash", "-euc", script], capture_output=True, text=True)
        assert seen.stdout.split()[:2] == ["node0", "Ready"], seen.stderr
        assert seen.stdout.endswith("v4.3.1")
        again = run_testbed("up", "--bare", "--folder", folder)
        assert "running already" in again.stderr
        assert again.stdout == started.stdout
    finally:
        ended = run_testbed("down", "--folder", folder)
    assert "the cluster is gone" in ended.stderr
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert "there was no cluster" in run_testbed("down", "--folder", folder).stderr
