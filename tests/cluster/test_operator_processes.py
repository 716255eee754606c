"""The operator's real process: leadership handed over, killed, stopped, started with a faulty configuration."""

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from oplab import Lab
from oplab.process import OperatorProcess, operator_process

from paceline.operator.kube.resources import LEASES, SECRETS

QUICK_LEASE = {"durationSeconds": 3, "renewSeconds": 0.5, "deadlineSeconds": 2}


def holder(lab: Lab) -> str:
    lease = lab.api.find(LEASES, lab.space, "paceline-operator")
    return str(lease["spec"].get("holderIdentity", "")) if lease else ""


def wait_leader(lab: Lab, operator: OperatorProcess) -> None:
    lab.wait(lambda: operator.leads, f"leads: {operator.log.read_text()}", seconds=90)


def pair(folder: Path, lab: Lab, identity: str) -> AbstractContextManager[OperatorProcess]:
    lease = {"namespace": lab.space, **QUICK_LEASE}
    return operator_process(folder, lab.server.kubeconfig, lab.engines.port, lab.space, identity, lease=lease)


def test_the_second_takes_over_from_a_killed_leader_and_nothing_restarts(lab: Lab, tmp_path: Path) -> None:
    with pair(tmp_path, lab, "first") as first:
        wait_leader(lab, first)
        with pair(tmp_path, lab, "second") as second:
            (pod,) = lab.serve()
            template, uid = lab.deployment()["spec"]["template"], pod.manifest()["metadata"]["uid"]
            epoch = pod.engine.settings.epoch
            assert holder(lab) == "first"
            assert not second.leads
            assert second.health("/readyz").status_code == 200, "a standby is ready to take over"
            first.process.kill()
            lab.change("web", {"pacing": {"mode": "Fixed", "interval": 8}})
            wait_leader(lab, second)
            lab.wait(lambda: pod.engine.settings.pacing.interval == 8, "the successor applies the change", seconds=60)
            assert holder(lab) == "second"
            assert lab.deployment()["spec"]["template"] == template
            assert pod.manifest()["metadata"]["uid"] == uid
            assert pod.engine.settings.epoch == epoch + 1, "each leader has an epoch of its own"
            lab.wait_condition("Ready", "True")


def test_a_stopped_leader_gives_the_lease_up_and_ends_with_status_0(lab: Lab, tmp_path: Path) -> None:
    with pair(tmp_path, lab, "first") as first:
        wait_leader(lab, first)
        assert holder(lab) == "first"
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(30) == 0
        assert holder(lab) == ""
        assert first.lines("leadership_released")


def test_a_leader_that_was_succeeded_ends_and_writes_no_more(lab: Lab, tmp_path: Path) -> None:
    with pair(tmp_path, lab, "first") as first:
        wait_leader(lab, first)
        (pod,) = lab.serve()
        # Stopped like a node that hangs; it wakes to find a successor at work.
        first.process.send_signal(signal.SIGSTOP)
        lab.change("web", {"pacing": {"mode": "Fixed", "interval": 3}})
        with pair(tmp_path, lab, "second") as second:
            wait_leader(lab, second)
            lab.wait(lambda: pod.engine.settings.pacing.interval == 3, "the successor works", seconds=60)
            received = len(pod.engine.received)
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(30) == 3
            assert first.lines("leadership_lost")
            assert pod.engine.settings.pacing.interval == 3
            late = pod.engine.received[received:]
            assert all(settings.epoch == pod.engine.settings.epoch for settings in late), (
                "the old leader was fenced off"
            )


def test_the_key_of_the_admin_tokens_outlives_the_operator(lab: Lab, tmp_path: Path) -> None:
    with pair(tmp_path, lab, "first") as first:
        wait_leader(lab, first)
        (pod,) = lab.serve()
        key = lab.api.get(SECRETS, lab.space, "paceline-operator-key")["data"]
    with pair(tmp_path, lab, "second") as second:
        wait_leader(lab, second)
        lab.change("web", {"pacing": {"mode": "Fixed"}})
        lab.wait(lambda: pod.engine.settings.pacing.mode.value == "Fixed", "applied", seconds=60)
    assert lab.api.get(SECRETS, lab.space, "paceline-operator-key")["data"] == key
    assert len(pod.engine.tokens) == 1, "both operators know the same token"


def test_metrics_and_logs_tell_what_was_done(lab: Lab, tmp_path: Path) -> None:
    with pair(tmp_path, lab, "first") as first:
        wait_leader(lab, first)
        lab.serve()
        metrics = first.health("/metrics").text
        assert "paceline_operator_leader 1.0" in metrics
        assert 'paceline_operator_reconciles_total{result="done"}' in metrics
        assert 'paceline_operator_api_calls_total{kind="deployments",status="201",verb="PATCH"}' in metrics
        assert 'paceline_operator_engine_pushes_total{result="applied"} 1.0' in metrics
        assert 'paceline_operator_watch_silence_seconds{kind="pods"' in metrics
        line = first.lines("pass_done")[0]
        assert '"profile": "web"' in line
        assert f'"namespace": "{lab.space}"' in line
        assert '"reconcile_id": "' in line


def test_a_faulty_configuration_is_named(tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("engine: {adminPrt: 9}\n")
    command = [sys.executable, "-P", "-m", "paceline.operator.main", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "engine.adminPrt" in done.stderr
