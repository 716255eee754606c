"""What is found out before anything starts: the model, the ports, what a local run can't honour."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.local.ports import PortRequest
from paceline.cli.local.preflight import check_model, choose_ports, find_engine_python, ignored_fields
from paceline.operator.api.v1alpha1 import InferenceProfileSpec


def spec(source: str, **engine: Any) -> InferenceProfileSpec:
    """Return a spec with this model and engine."""
    return InferenceProfileSpec.model_validate({"model": {"source": source}, "engine": engine})


def model_problem(source: str, **engine: Any) -> str:
    """Return what is said about a model."""
    with pytest.raises(CliError) as caught:
        check_model(spec(source, **engine))
    assert caught.value.code == ExitCode.INVALID
    return caught.value.message


def test_a_models_folder_needs_a_config_and_weights(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    source = f"file://{tmp_path}/with%20space"
    assert model_problem(source) == f"spec.model.source: the folder {folder} does not exist"
    folder.touch()
    assert model_problem(source) == f"spec.model.source: the folder {folder} is a file"
    folder.unlink()
    folder.mkdir()
    assert model_problem(source) == f"spec.model.source: {folder} holds no config.json, so it is no model"
    (folder / "config.json").touch()
    assert "holds no weights" in model_problem(source)
    check_model(spec(source, extraArgs=["--load-format", "dummy"]))
    (folder / "a.safetensors").touch()
    check_model(spec(source))


def test_sources_that_are_no_folder() -> None:
    check_model(spec("hf://org/name"))
    assert "which only a cluster has" in model_problem("pvc://claim/model")


def test_what_a_local_run_ignores_is_told() -> None:
    assert list(ignored_fields(spec("hf://a/b", replicas=1))) == []
    told = list(ignored_fields(spec("hf://a/b", replicas=2, image="x", nodeSelector={"a": "b"})))
    assert told == [
        "spec.engine.replicas is 2: a local run always starts one engine",
        "spec.engine.image has no effect on a local run",
        "spec.engine.nodeSelector has no effect on a local run",
    ]


def request(port: int, option: str = "--port") -> PortRequest:
    """Return a request for a port of the loopback address."""
    return PortRequest("the engine", option, "127.0.0.1", port)


def test_free_ports_are_all_different() -> None:
    chosen = choose_ports({str(number): request(0) for number in range(20)})
    assert len({*chosen.values()}) == 20
    assert all(chosen.values())


def test_a_taken_port_names_its_holder_and_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CliError) as caught:
            choose_ports({"engine": request(port)})
    assert caught.value.code == ExitCode.BUSY
    assert f"the engine can't listen on 127.0.0.1:{port}: Address already in use by process {os.getpid()} (" in str(
        caught.value
    )
    assert "--port" in str(caught.value.advice)
    assert choose_ports({"engine": request(port)}) == {"engine": port}


def test_one_port_for_two_parts_is_refused() -> None:
    (port,) = choose_ports({"a": request(0)}).values()
    with pytest.raises(CliError, match=f"port {port} is asked for twice"):
        choose_ports({"a": request(port), "b": request(port, "--admin-port")})


def interpreter(folder: Path, answer: str) -> Path:
    """Make a program that answers like an interpreter that was asked for its packages."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("""echo '{"vllm": false, "paceline": true, "version": "1"}'""", "has no vllm"),
        ("""echo '{"vllm": true, "paceline": false}'""", "has no paceline"),
        ("echo hello", "is no working Python"),
        ("exit 3", "is no working Python"),
    ],
)
def test_interpreters_that_run_no_engine(tmp_path: Path, answer: str, message: str) -> None:
    with pytest.raises(CliError) as caught:
        find_engine_python(interpreter(tmp_path, answer))
    assert message in caught.value.message
    assert "given with --engine-python" in caught.value.message


def test_another_version_in_the_engines_environment_is_told(tmp_path: Path) -> None:
    path = interpreter(tmp_path, """echo '{"vllm": true, "paceline": true, "version": "0.0.1"}'""")
    found = find_engine_python(path)
    assert found.path == str(path)
    assert "the engine's environment has Paceline 0.0.1" in str(found.warning)


def test_the_environment_names_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ENGINE_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(CliError, match=r"named by PACELINE_ENGINE_PYTHON.* can't be run: No such file"):
        find_engine_python(None)
