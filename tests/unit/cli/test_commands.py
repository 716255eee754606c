"""What commands say and how they exit where nothing runs, or where they were called wrongly."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from paceline import __version__
from paceline.cli.local.lock import InstanceLock
from paceline.cli.local.state import ProfileState
from paceline.cli.main import main

COMMANDS = (
    ("up",),
    ("down",),
    ("status",),
    ("pace",),
    ("coalesce",),
    ("plan",),
    ("report",),
    ("recommend",),
    ("simulate",),
    ("crd",),
    ("experiment", "run"),
    ("experiment", "show"),
    ("experiment", "list"),
    ("experiment", "cancel"),
)


@dataclass
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str


Paceline = Callable[..., Outcome]


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Paceline:
    """Return a function that runs the program in this process, with a state folder of its own."""
    monkeypatch.setenv("PACELINE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("PACELINE_API_URL", "PACELINE_API_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def known(tmp_path: Path) -> ProfileState:
    """Leave the traces of a profile that ran once."""
    state = ProfileState(tmp_path / "state", "default", "tiny")
    state.create()
    InstanceLock(state.lock).acquire().release()
    return state


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(paceline: Paceline, command: tuple[str, ...]) -> None:
    outcome = paceline(*command, "--help")
    assert outcome.status == 0
    assert "Examples:" in outcome.out
    assert f"paceline {' '.join(command)}" in outcome.out.partition("Examples:")[2]


def test_the_root_lists_every_command_and_status(paceline: Paceline) -> None:
    text = paceline("--help").out
    for command, *_ in COMMANDS:
        assert f"\n  {command} " in text
    assert "Exit statuses: 0 done" in text
    assert paceline("--version").out == f"paceline {__version__}\n"


def test_the_crd_is_printed_as_yaml(paceline: Paceline) -> None:
    document = yaml.safe_load(paceline("crd").out)
    assert (document["kind"], document["metadata"]["name"]) == (
        "CustomResourceDefinition",
        "inferenceprofiles.paceline.dev",
    )


def test_nothing_was_ever_started(paceline: Paceline) -> None:
    for command in (("status", "tiny"), ("pace", "tiny"), ("down", "tiny")):
        outcome = paceline(*command)
        assert (outcome.status, outcome.out) == (4, "")
        assert (
            "no profile default/tiny was ever started here\nStart one with `paceline up PROFILE.yaml`." in outcome.err
        )
    assert (paceline("status", "-o", "json").out) == "[]\n"
    report = paceline("report")
    assert report.status == 4
    assert "no profile is running, and no experiment is stored" in report.err
    run = paceline("experiment", "run", "--arm", "off", "--arm", "4")
    assert (run.status, "no profile is running" in run.err) == (4, True)


def test_a_profile_that_is_stopped(paceline: Paceline, known: ProfileState) -> None:
    assert json.loads(paceline("status", "-o", "json").out) == [
        {"name": known.key, "phase": "stopped", "folder": str(known.folder)}
    ]
    pace = paceline("pace", "tiny", "--interval", "4")
    assert pace.status == 4
    assert "default/tiny is not running\nStart it with `paceline up PROFILE.yaml`." in pace.err
    down = paceline("down", "tiny")
    assert (down.status, down.err) == (0, "default/tiny is not running\n")
    other = paceline("status", "other")
    assert other.status == 4
    assert "Known here: default/tiny." in other.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pace", "tiny", "--interval", "-1"), "'--interval': Input should be greater than or equal to 0"),
        (("pace", "tiny", "--interval", "1000000000"), "'--interval': Input should be less than or equal to 1024"),
        (("pace", "tiny", "--interval", "4", "--slo", "80ms"), "--interval belongs to mode Fixed"),
        (("pace", "tiny", "--interval", "4", "--mode", "disabled"), "belong to mode Fixed, not to Disabled"),
        (("pace", "tiny", "--slo", "80"), "'80' is no duration"),
        (("pace", "tiny", "--mode", "off"), "'off' is not one of 'disabled', 'fixed', 'slo'"),
        (("pace", "tiny", "--slo", "0ms"), "for --slo: Input should be greater than or equal to 1 milliseconds"),
        (("pace", "tiny", "--slo", "2m"), "for --slo: Input should be less than or equal to 60000 milliseconds"),
        (("pace", "tiny", "--max-prefill-delay", "0s"), "for --max-prefill-delay: Input should be greater than or"),
        (("coalesce", "tiny", "--final-chunk", "on"), "'on' is not one of 'enabled', 'disabled'"),
        (("coalesce", "tiny", "--max-span-tokens", "63"), "Input should be greater than or equal to 64"),
        (("pace", "a/b/c"), "'a/b/c' is no profile's name"),
        (("pace", "../tiny"), "'../tiny' is no profile's name"),
        (("down", "tiny", "--timeout", "x"), "'x' is no duration"),
        (("experiment", "run"), "say what to compare, as in --arm off --arm 4"),
        (("experiment", "run", "--arm", "x"), "'x' is no arm"),
        (("recommend",), "Missing option '--slo'"),
        (("recommend", "--slo", "80"), "'80' is no duration"),
        (("recommend", "--slo", "0ms"), "a promise of 0 ms can't be kept"),
        (("simulate",), "give either --hardware or --calibrate"),
        (("simulate", "--hardware", "h100"), "there are v100x2, v100x2-any-page, v100x4"),
        (("simulate", "--hardware", "/nowhere.yaml"), "the hardware model /nowhere.yaml can't be read"),
        (("simulate", "--hardware", "v100x2", "--interval", "4,x"), "'x' is no arm"),
        (("simulate", "--hardware", "v100x2", "--interval", "80ms"), "'80ms' is a promise: give it with --slo"),
        (("simulate", "--hardware", "v100x2", "--interval", ","), "0 settings to simulate: give 1 to 64"),
        (("simulate", "--hardware", "v100x2", "--interval", "4," * 65), "65 settings to simulate: give 1 to 64"),
        (("simulate", "--hardware", "v100x2", "--residents", "8"), "need 1,936,384 tokens of KV cache"),
        (("simulate", "--hardware", "v100x2", "--slo", "80"), "'80' is no duration"),
        (("simulate", "--hardware", "v100x2", "--engine-python", "/nowhere"), "/nowhere"),
        (("report", "--plot", "x.gif"), "can't draw into x.gif"),
        (("report", "--plot", "/nowhere/x.png"), "there is no folder /nowhere"),
        (("up", "/nowhere.yaml"), "there is no file /nowhere.yaml"),
        (("up",), "PROFILE.yaml"),
        (("frobnicate",), "No such command 'frobnicate'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_calls_exit_with_2_and_say_why(paceline: Paceline, arguments: tuple[str, ...], message: str) -> None:
    outcome = paceline(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err


class Handler(BaseHTTPRequestHandler):
    """A control API that refuses everything."""

    status, problem = 401, b'{"title": "Unauthorized", "detail": "the bearer token is not the right one"}'

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_response(self.status)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(self.problem)))
        self.end_headers()
        self.wfile.write(self.problem)


@pytest.fixture
def refusing_api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paceline: Paceline) -> Iterator[str]:
    """Serve a control API that refuses, and set the environment up for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    token = tmp_path / "token"
    token.write_text("secret\n")
    monkeypatch.setenv("PACELINE_API_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("PACELINE_API_TOKEN_FILE", str(token))
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("refusing_api")
def test_a_wrong_token_is_told(paceline: Paceline) -> None:
    outcome = paceline("pace", "tiny")
    assert (outcome.status, outcome.out) == (1, "")
    assert "error: the control API refused the token: the bearer token is not the right one" in outcome.err


@pytest.mark.usefixtures("refusing_api")
@pytest.mark.parametrize("content", [b"\xff\xfe", "pass\u00e9".encode(), b"two\nlines"])
def test_a_token_file_that_holds_none_is_told(paceline: Paceline, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    outcome = paceline("pace", "tiny")
    assert (outcome.status, outcome.out) == (2, "")
    assert "holds no token: expected one line of printable ASCII" in outcome.err


def test_a_remote_api_that_is_not_there(paceline: Paceline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_API_URL", "http://127.0.0.1:9")
    no_token = paceline("status")
    assert no_token.status == 2
    assert "PACELINE_API_URL is set but PACELINE_API_TOKEN_FILE is not" in no_token.err

    monkeypatch.setenv("PACELINE_API_TOKEN_FILE", str(tmp_path / "nothing"))
    no_file = paceline("status")
    assert (no_file.status, "cannot read the token file" in no_file.err) == (2, True)

    (tmp_path / "nothing").write_text("x")
    away = paceline("status")
    assert (away.status, "the control API at http://127.0.0.1:9 can't be reached" in away.err) == (1, True)

    monkeypatch.setenv("PACELINE_API_URL", "127.0.0.1:9")
    assert "expected http://... or https://..." in paceline("status").err


@pytest.mark.usefixtures("refusing_api")
def test_one_profile_in_detail_tells_what_its_page_gate_does(
    paceline: Paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"name": "engine", "revision": 3, "applied": True, "paced": True, "message": None}
    told = "AnyPage: pages of 784 tokens, as the model asks for; calls left to the engine: SoftCap"
    profile = {
        "namespace": "default",
        "name": "tiny",
        "model": "tiny",
        "profile": {"spec": {"pacing": {"mode": "Disabled"}}},
        "status": {
            "revision": 3,
            "applied": True,
            "coalescing": {"finalChunk": "Enabled"},
            "engines": [{**engine, "uncoalesced": "blocks of 784 tokens", "pageGate": told}],
        },
    }
    monkeypatch.setattr(Handler, "status", 200)
    monkeypatch.setattr(Handler, "problem", json.dumps(profile).encode())
    outcome = paceline("status", "tiny")
    assert outcome.status == 0
    shown = " ".join(outcome.out.split())
    assert told in shown
    assert "Coalescing Enabled, spans up to 8192 tokens (SinglePrefill)" in shown
    assert "Not coalesced blocks of 784 tokens" in shown


@pytest.mark.usefixtures("refusing_api")
def test_coalescing_is_told_with_what_keeps_an_engine_from_it(
    paceline: Paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"name": "engine", "revision": 3, "applied": True, "message": None, "uncoalesced": "it speculates"}
    document = {"coalescing": {"finalChunk": "Enabled"}, "revision": 3, "applied": True, "engines": [engine]}
    monkeypatch.setattr(Handler, "status", 200)
    monkeypatch.setattr(Handler, "problem", json.dumps(document).encode())
    outcome = paceline("coalesce", "tiny")
    assert outcome.status == 0
    assert outcome.out.splitlines() == [
        "default/tiny: Enabled, spans up to 8192 tokens (SinglePrefill) (revision 3)",
        "  engine coalesces nothing: it speculates",
    ]
