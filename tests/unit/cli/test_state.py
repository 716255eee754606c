"""The state folder, its lock, and the settings that a new run starts with."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.errors import CliError
from paceline.cli.local.lock import AlreadyLockedError, InstanceLock, is_locked
from paceline.cli.local.state import ProfileState, ensure_token, known_profiles, next_settings, state_root
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec

FIXED_4 = PacingSettings(mode=PacingMode.FIXED, interval=4)


def spec(pacing: PacingSettings) -> InferenceProfileSpec:
    """Return a spec with this pacing."""
    return InferenceProfileSpec.model_validate({"model": {"source": "hf://a/b"}, "pacing": pacing})


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PACELINE_STATE_DIR", raising=False)
    assert state_root() == tmp_path / "xdg" / "paceline"
    monkeypatch.setenv("PACELINE_STATE_DIR", str(tmp_path / "own"))
    assert state_root() == tmp_path / "own"


def test_a_first_run_starts_with_the_profile_at_revision_0() -> None:
    assert next_settings(spec(FIXED_4), None) == LiveSettings(epoch=0, revision=0, pacing=FIXED_4)


def test_a_new_run_raises_the_epoch_and_keeps_the_revision_of_equal_knobs() -> None:
    last = LiveSettings(epoch=2, revision=7, pacing=FIXED_4)
    assert next_settings(spec(FIXED_4), last) == LiveSettings(epoch=3, revision=7, pacing=FIXED_4)


def test_a_new_run_with_other_knobs_is_a_new_revision() -> None:
    last = LiveSettings(epoch=2, revision=7, pacing=FIXED_4)
    assert next_settings(spec(PacingSettings()), last) == LiveSettings(epoch=3, revision=8)


def test_tokens_are_private_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "token"
    ensure_token(path)
    token = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token.strip()) >= 40
    ensure_token(path)
    assert path.read_text() == token


def test_a_token_that_a_full_disk_cut_off_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    ensure_token(path)
    assert len(path.read_text().strip()) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_token_that_can_not_be_written_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="cannot write the token file"):
        ensure_token(tmp_path / "missing" / "token")


def test_a_path_that_no_database_address_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="question mark"):
        ProfileState(tmp_path / "a?b", "default", "x").create()
    assert list(tmp_path.iterdir()) == []


def test_the_whole_root_is_private(tmp_path: Path) -> None:
    state = ProfileState(tmp_path / "state", "default", "x")
    state.create()
    assert stat.S_IMODE(state.root.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match="cannot make the state folder"):
        ProfileState(tmp_path / "file", "default", "x").create()


def test_settings_survive_a_round_trip_and_rubbish_counts_as_none(tmp_path: Path) -> None:
    state = ProfileState(tmp_path, "default", "x")
    state.create()
    assert state.read_settings() is None
    settings = LiveSettings(epoch=1, revision=2, pacing=FIXED_4)
    state.write_settings(settings)
    assert state.read_settings() == settings
    state.settings_file.write_text("{")
    assert state.read_settings() is None
    assert [path.name for path in state.folder.iterdir()] == ["settings.json"]


def test_profiles_that_were_started_once_are_known(tmp_path: Path) -> None:
    assert known_profiles(tmp_path) == []
    for namespace, name in (("team", "b"), ("default", "a")):
        state = ProfileState(tmp_path, namespace, name)
        state.create()
        InstanceLock(state.lock).acquire().release()
    assert [state.key for state in known_profiles(tmp_path)] == ["default/a", "team/b"]


def test_a_lock_is_held_once_and_ends_with_its_last_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    lock = InstanceLock(path).acquire()
    assert is_locked(path)
    with pytest.raises(AlreadyLockedError):
        InstanceLock(path).acquire()
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.descriptor])
    lock.release()
    assert is_locked(path), "the child inherited the lock"
    heir.kill()
    heir.communicate()
    assert not is_locked(path)
    InstanceLock(path).acquire().release()


def test_a_lock_is_not_inherited_unasked(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path / "lock").acquire()
    assert not os.get_inheritable(lock.descriptor)
    lock.release()
