"""What the control API is told at its start: by environment variables, and nothing secret in any message."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from api_support.postgres import PostgresServer
from api_support.servers import ApiProcess
from hypothesis import given
from hypothesis import strategies as st

from paceline.control_api.app import create_app
from paceline.control_api.config import ApiConfig
from paceline.control_api.errors import StartupError

PASSWORD = "p%40@:/#"

IN_CLUSTER = {"PROFILE_STORE": "kubernetes", "DATABASE_URL": "sqlite:///d", "ADMIN_KEY_FILE": "key"}


def configured(**settings: str) -> ApiConfig:
    return ApiConfig.from_environment({f"PACELINE_API_{name}": value for name, value in settings.items()})


def test_the_folder_of_a_local_run_is_enough(tmp_path: Path) -> None:
    config = configured(LOCAL_STATE=str(tmp_path))
    assert (config.host, config.port) == ("127.0.0.1", 8700)
    assert config.token_file == tmp_path / "api-token"
    assert config.sqlalchemy_url.database == str(tmp_path / "paceline.db")
    assert config.sqlalchemy_url.drivername == "sqlite+aiosqlite"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "PACELINE_API_LOCAL_STATE: is not set"),
        ({"LOCAL_STATE": "s", "PROT": "1"}, "PACELINE_API_PROT: is not a known setting"),
        ({"LOCAL_STATE": "s", "PORT": "99999"}, "PACELINE_API_PORT"),
        ({"LOCAL_STATE": "s", "PORT": "http"}, "PACELINE_API_PORT"),
        ({"LOCAL_STATE": "s", "HOST": "0.0.0.0"}, "ssh -L"),
        ({"LOCAL_STATE": "s", "HOST": "example.org"}, "reachable from other machines"),
        ({"LOCAL_STATE": "s", "PROFILE_STORE": "redis"}, "PACELINE_API_PROFILE_STORE"),
        ({"LOCAL_STATE": "s", "DATABASE_URL": "mysql://u@h/d"}, "postgresql://user:password@host"),
        ({"LOCAL_STATE": "s", "DATABASE_URL": "nonsense"}, "sqlite:////path"),
        ({"LOCAL_STATE": "s", "LOG_LEVEL": "loud"}, "PACELINE_API_LOG_LEVEL"),
        ({"PROFILE_STORE": "kubernetes", "DATABASE_URL": "sqlite:///d"}, "PACELINE_API_ADMIN_KEY_FILE: is not set"),
        ({"PROFILE_STORE": "kubernetes", "ADMIN_KEY_FILE": "k"}, "PACELINE_API_DATABASE_URL: is not set"),
        ({**IN_CLUSTER, "NAMESPACES": "team-a,Team_B"}, "PACELINE_API_NAMESPACES"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable(settings: dict[str, str], said: str) -> None:
    with pytest.raises(StartupError) as raised:
        configured(**settings)
    assert said in str(raised.value)


def test_in_a_cluster_it_may_be_reached_from_other_machines() -> None:
    config = configured(**IN_CLUSTER, HOST="0.0.0.0", NAMESPACES="team-a, team-b")
    assert config.namespaces == ("team-a", "team-b")
    assert configured(**IN_CLUSTER).namespaces == ()


@pytest.mark.parametrize(
    ("key", "more", "said"),
    [
        (b"k" * 15, {}, "holds less than 16 bytes"),
        (None, {}, "PACELINE_API_ADMIN_KEY_FILE can't be read"),
        (b"k" * 16, {}, "name a kubeconfig in PACELINE_API_KUBECONFIG"),
        (b"k" * 16, {"KUBECONFIG": "missing"}, "PACELINE_API_KUBECONFIG: missing is not there"),
    ],
)
def test_outside_of_a_cluster_or_without_its_key_it_does_not_start(
    tmp_path: Path, key: bytes | None, more: dict[str, str], said: str
) -> None:
    file = tmp_path / "key"
    if key is not None:
        file.write_bytes(key)
    here = tmp_path / "kubeconfig"
    here.touch()
    more = more if key == b"k" * 16 else {"KUBECONFIG": str(here)}
    with pytest.raises(StartupError) as raised:
        create_app(configured(**{**IN_CLUSTER, "ADMIN_KEY_FILE": str(file), **more}))
    assert said in str(raised.value)


def test_the_commands_own_variable_is_no_setting(tmp_path: Path) -> None:
    assert configured(LOCAL_STATE=str(tmp_path), URL="http://127.0.0.1:1").port == 8700


def test_a_password_that_is_not_encoded_is_told_without_showing_it() -> None:
    with pytest.raises(StartupError) as raised:
        configured(LOCAL_STATE="s", DATABASE_URL=f"postgresql://u:{PASSWORD}@h/d")
    assert "PACELINE_API_DATABASE_PASSWORD_FILE" in str(raised.value)
    assert PASSWORD not in str(raised.value)


@given(password=st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1, max_size=30))
def test_any_password_from_a_file_arrives_as_it_is(tmp_path_factory: pytest.TempPathFactory, password: str) -> None:
    path = tmp_path_factory.getbasetemp() / hashlib.sha256(password.encode()).hexdigest()
    path.write_bytes(password.encode() + b"\n")
    config = configured(LOCAL_STATE="s", DATABASE_URL="postgresql://u@h/d", DATABASE_PASSWORD_FILE=str(path))
    assert config.sqlalchemy_url.password == password
    shown = repr(config)
    path.write_bytes(b"another one\n")
    other = configured(LOCAL_STATE="s", DATABASE_URL="postgresql://u@h/d", DATABASE_PASSWORD_FILE=str(path))
    assert repr(other) == shown  # so nothing of a password is in it


def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = configured(LOCAL_STATE="s", DATABASE_URL="postgresql://u@h/d", DATABASE_PASSWORD_FILE=str(tmp_path / "no"))
    with pytest.raises(StartupError, match="DATABASE_PASSWORD_FILE"):
        _ = config.sqlalchemy_url


@pytest.mark.parametrize("way", ["url", "file"])
def test_a_password_full_of_marks_works_and_is_never_logged(
    postgres: PostgresServer, state: Path, tmp_path: Path, way: str
) -> None:
    database = postgres.new_database()
    postgres.run(f"CREATE ROLE {database} LOGIN PASSWORD '{PASSWORD}'")
    postgres.run(f"ALTER DATABASE {database} OWNER TO {database}")
    (tmp_path / "secret").write_text(PASSWORD)
    environment = {"PACELINE_API_LOCAL_STATE": str(state), "PACELINE_API_LOG_LEVEL": "debug"}
    if way == "url":
        environment["PACELINE_API_DATABASE_URL"] = postgres.url(database, database, PASSWORD)
    else:
        environment["PACELINE_API_DATABASE_URL"] = f"postgresql://{database}@127.0.0.1:{postgres.port}/{database}"
        environment["PACELINE_API_DATABASE_PASSWORD_FILE"] = str(tmp_path / "secret")
    process = ApiProcess(environment, tmp_path / "log")
    try:
        process.wait_ready()
    finally:
        process.stop()
    said = process.log.read_text()
    assert '"event": "migrating"' in said
    for form in (PASSWORD, "p%2540%40%3A%2F%23", "p%2540"):
        assert form not in said


def test_a_wrong_password_is_told_without_showing_it(postgres: PostgresServer, state: Path, tmp_path: Path) -> None:
    url = postgres.url(postgres.new_database(), password="wr0ng-0ne")
    environment = {"PACELINE_API_LOCAL_STATE": str(state), "PACELINE_API_DATABASE_URL": url}
    process = ApiProcess(environment, tmp_path / "log")
    assert process.process.wait(180) == 1
    said = process.log.read_text()
    assert "password authentication failed" in said
    assert "wr0ng-0ne" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda state: (state / "api-token").unlink(), "token file can't be read"),
        (lambda state: (state / "api-token").write_text("\n"), "is empty"),
        (lambda state: (state / "profile.yaml").write_text("kind: Pod"), "can't be read as a profile"),
        (lambda state: (state / "profile.yaml").unlink(), "paceline up PROFILE.yaml"),
    ],
)
def test_a_broken_state_folder_is_told_in_one_line(
    state: Path, tmp_path: Path, break_it: Callable[[Path], object], said: str
) -> None:
    break_it(state)
    process = ApiProcess({"PACELINE_API_LOCAL_STATE": str(state)}, tmp_path / "log")
    assert process.process.wait(180) == 1
    output = process.log.read_text()
    assert said in output
    assert "Traceback" not in output


def test_a_port_in_use_is_named_with_the_variable_that_changes_it(state: Path, tmp_path: Path) -> None:
    first = ApiProcess({"PACELINE_API_LOCAL_STATE": str(state)}, tmp_path / "first.log").wait_ready()
    try:
        taken = {"PACELINE_API_LOCAL_STATE": str(state), "PACELINE_API_PORT": str(first.port)}
        second = ApiProcess(taken, tmp_path / "second.log")
        assert second.process.wait(180) == 1
        assert f"127.0.0.1:{first.port}" in second.log.read_text()
        assert "PACELINE_API_PORT" in second.log.read_text()
    finally:
        first.stop()
