"""The testbed's level 1 is what the other tests take it for: a real, restartable API server with real permissions."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from testbed import ApiServer, wait_until
from testbed.commands import CommandError
from testbed.processes import Process, ProcessDiedError


def test_the_server_has_the_version_that_it_was_built_as(api_server: ApiServer) -> None:
    assert '"gitVersion": "v1.36.' in api_server.kubectl("get", "--raw", "/version").stdout


def test_a_service_account_may_do_what_its_role_says_and_no_more(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    api_server.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps", "-n", namespace)
    api_server.kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:default", "-n", namespace
    )
    token = api_server.token_for(namespace, "default")
    own = api_server.kubeconfig_for(token, path=tmp_path / "kubeconfig", namespace=namespace)
    api_server.kubectl("get", "configmaps", f"--kubeconfig={own}")
    with pytest.raises(CommandError, match=r"cannot list resource \"secrets\""):
        api_server.kubectl("get", "secrets", f"--kubeconfig={own}")
    forbidden = [
        event["objectRef"]["resource"]
        for event in api_server.audit_events(f"system:serviceaccount:{namespace}:default")
        if event["responseStatus"]["code"] == 403
    ]
    assert forbidden == ["secrets"]


def test_objects_outlast_a_restart_of_the_api_server(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("create", "configmap", "kept", "--from-literal=key=value", "-n", namespace)
    with api_server.away():
        assert "refused" in api_server.kubectl("get", "configmaps", check=False).stderr
    assert api_server.get("configmap", "kept", "-n", namespace)["data"] == {"key": "value"}


def test_a_paused_api_server_lets_requests_time_out_and_then_goes_on(api_server: ApiServer, namespace: str) -> None:
    with api_server.paused():
        answer = api_server.kubectl("get", "configmaps", "-n", namespace, "--request-timeout=1s", check=False)
        assert answer.status != 0
    api_server.kubectl("get", "configmaps", "-n", namespace)


def test_owned_objects_go_with_their_owner_once_the_controllers_run(api_server: ApiServer, namespace: str) -> None:
    api_server.start_controller_manager()
    api_server.kubectl("create", "configmap", "owner", "-n", namespace)
    owner = api_server.get("configmap", "owner", "-n", namespace)["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    api_server.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    api_server.kubectl("delete", "configmap", "owner", "-n", namespace)
    wait_until(
        lambda: api_server.kubectl("get", "configmap", "owned", "-n", namespace, check=False).status == 1,
        "the owned object is gone",
    )


def test_a_process_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process("doomed", ["sh", "-c", "echo the reason; exit 3"], tmp_path / "doomed.log")
    process.start()
    with pytest.raises(ProcessDiedError, match=r"(?s)doomed ended with status 3.*the reason"):
        process.wait_ready(lambda: False, seconds=10)


def test_no_process_outlives_a_program_that_was_killed(tmp_path: Path) -> None:
    program = f"""
        import os, pathlib, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from testbed.processes import Process
        process = Process("sleeper", ["sleep", "600"], pathlib.Path({str(tmp_path / "sleeper.log")!r}))
        process.start()
        comm = pathlib.Path(f"/proc/{{process.pid}}/comm")
        while comm.read_text() != "sleep\\n":
            pass  # the guard before it is what has the kernel end it
        print(process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    sleeper = Path("/proc") / killed.stdout.strip()
    wait_until(lambda: has_ended(sleeper), "the child is gone")


def has_ended(process: Path) -> bool:
    """Tell whether the process of a folder in /proc runs no more."""
    try:
        return "State:\tZ" in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True  # the second where it goes while its status is read
