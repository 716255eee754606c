"""What an engine refuses to start with, and what it says then."""

import socket
from pathlib import Path

import pytest

from paceline.engine_ext.environment import AdminConfig, StartError
from paceline.engine_ext.live import read_settings
from paceline.engine_ext.settings import LiveSettings, PacingMode
from paceline.engine_ext.start import bind_admin_port

TOKEN = "0123456789abcdef"


def environ(tmp_path: Path, **changes: str) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    return {"PACELINE_ADMIN_PORT": "9000", "PACELINE_ADMIN_TOKEN_FILE": str(token)} | changes


def test_admin_port_is_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    assert AdminConfig.from_environ(environ(tmp_path)) == AdminConfig("127.0.0.1", 9000, TOKEN, 300.0)
    told = environ(tmp_path, PACELINE_ADMIN_HOST="0.0.0.0", PACELINE_STALL_SECONDS="20")
    assert AdminConfig.from_environ(told) == AdminConfig("0.0.0.0", 9000, TOKEN, 20.0)


def test_no_admin_port_was_asked_for() -> None:
    assert AdminConfig.from_environ({}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PACELINE_ADMIN_PORT": "0"}, "PACELINE_ADMIN_PORT is '0': give a port between 1 and 65535"),
        ({"PACELINE_ADMIN_PORT": "65536"}, "give a port between"),
        ({"PACELINE_ADMIN_PORT": "http"}, "give a port between"),
        ({"PACELINE_ADMIN_TOKEN_FILE": ""}, "the admin port never listens without a token"),
        ({"PACELINE_ADMIN_TOKEN_FILE": "/nowhere/token"}, "PACELINE_ADMIN_TOKEN_FILE=/nowhere/token: .*No such file"),
        ({"PACELINE_STALL_SECONDS": "soon"}, "give a positive number of seconds"),
        ({"PACELINE_STALL_SECONDS": "-1"}, "give a positive number of seconds"),
        ({"PACELINE_STALL_SECONDS": "nan"}, "give a positive number of seconds"),
    ],
)
def test_broken_environment_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(StartError, match=message):
        AdminConfig.from_environ(environ(tmp_path, **changes))


@pytest.mark.parametrize("content", ["", "   \n", "short"])
def test_empty_or_short_token_is_refused(tmp_path: Path, content: str) -> None:
    changed = environ(tmp_path)
    (tmp_path / "token").write_text(content)
    with pytest.raises(StartError, match="fewer than 16 characters"):
        AdminConfig.from_environ(changed)


def test_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"epoch": 3, "revision": 7, "pacing": {"mode": "Fixed", "interval": 8}}')
    settings = read_settings(file)
    assert (settings.fence, settings.pacing.mode, settings.pacing.interval) == ((3, 7), PacingMode.FIXED, 8)
    assert read_settings(None) == LiveSettings()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read from PACELINE_SETTINGS_FILE=.*No such file"),
        ("", "invalid: document: Invalid JSON"),
        ("{", "invalid: document: Invalid JSON"),
        ('{"pacing": {"interval": -1}}', "invalid: pacing.interval: Input should be greater than or equal to 0"),
        ('{"pace": 1, "epoch": "x"}', "epoch: .*; pace: Extra inputs are not permitted"),
    ],
)
def test_broken_settings_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "settings.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartError, match=message):
        read_settings(file)


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"127\.0\.0\.1:{port} can't be opened: Address already in use; end what"):
            bind_admin_port(AdminConfig("127.0.0.1", port, TOKEN))
