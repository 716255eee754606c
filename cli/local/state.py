"""The local state folder: one folder a profile, shared between `paceline up`, the control API and the other commands.

`<root>/<namespace>/<name>/` holds `profile.yaml` (as started), `engine.json` (where the engine listens),
`settings.json` (the LiveSettings that the engine starts with; the control API rewrites it on changes), `api-token` and
`admin-token` (mode 0600), `engine.log`, `api.log`, `lock`, and `run.json` (addresses and process ids of the run).
`<root>/paceline.sqlite3` holds the experiments of all profiles.
"""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from paceline.cli.errors import CliError
from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.specs.engine_command import settings_document


def state_root() -> Path:
    """Return the root of all local state: PACELINE_STATE_DIR, or `paceline` in the user's state folder."""
    if chosen := os.environ.get("PACELINE_STATE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "paceline"


class RunRecord(BaseModel):
    """The run file: what a running `paceline up` tells the other commands."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    namespace: str
    name: str
    up_pid: int
    engine_pid: int | None = None
    api_pid: int | None = None
    engine_url: str
    admin_url: str
    api_url: str
    api_token_file: str
    profile_file: str
    served_model: str
    started_at: str
    ready_at: str | None = None


@dataclass(frozen=True)
class ProfileState:
    """The state folder of one profile."""

    root: Path
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """The profile's name as commands take and print it: `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def folder(self) -> Path:
        """The profile's own folder."""
        return self.root / self.namespace / self.name

    @property
    def lock(self) -> Path:
        """Locked while any process of the profile runs."""
        return self.folder / "lock"

    @property
    def run_file(self) -> Path:
        """The run file, a RunRecord."""
        return self.folder / "run.json"

    @property
    def engine_file(self) -> Path:
        """Where the control API finds the engine."""
        return self.folder / "engine.json"

    @property
    def settings_file(self) -> Path:
        """The live settings that the engine starts with."""
        return self.folder / "settings.json"

    @property
    def profile_file(self) -> Path:
        """The profile as it was started."""
        return self.folder / "profile.yaml"

    @property
    def api_token_file(self) -> Path:
        """The control API's bearer token."""
        return self.folder / "api-token"

    @property
    def admin_token_file(self) -> Path:
        """The engine's admin token."""
        return self.folder / "admin-token"

    @property
    def engine_log(self) -> Path:
        """What the engine printed in its last run."""
        return self.folder / "engine.log"

    @property
    def api_log(self) -> Path:
        """What the control API printed in its last run."""
        return self.folder / "api.log"

    @property
    def database(self) -> Path:
        """The SQLite file of all profiles below the root."""
        return self.root / "paceline.sqlite3"

    def create(self) -> None:
        """Make the folder, readable by its owner only. Raises CliError."""
        if "?" in str(self.root):
            raise CliError(
                f"the state folder {self.root} has a question mark in its path, which a database's address can't hold",
                advice="Name another folder with PACELINE_STATE_DIR.",
            )
        try:
            # Prompts and outputs end up in the database and the logs: the whole root is its owner's alone.
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise CliError(
                f"cannot make the state folder {self.folder}: {error.strerror}",
                advice="Name a folder that you may write to with PACELINE_STATE_DIR.",
            ) from None

    def read_run(self) -> RunRecord | None:
        """Return the run file's content; None without one, or when it is not one of ours."""
        try:
            return RunRecord.model_validate_json(self.run_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_run(self, record: RunRecord) -> None:
        """Replace the run file."""
        write_atomically(self.run_file, record.model_dump_json(by_alias=True, indent=2) + "\n")

    def write_engine(self, record: RunRecord) -> None:
        """Tell the control API where the engine is."""
        document = {
            "engineUrl": record.engine_url,
            "adminUrl": record.admin_url,
            "adminTokenFile": str(self.admin_token_file),
            "enginePid": record.engine_pid,
        }
        write_atomically(self.engine_file, json.dumps(document, indent=2) + "\n")

    def read_settings(self) -> LiveSettings | None:
        """Return the settings that the profile's last engine ended with; None without any that can be read."""
        try:
            return LiveSettings.model_validate_json(self.settings_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_settings(self, settings: LiveSettings) -> None:
        """Replace the settings that the next engine starts with."""
        write_atomically(self.settings_file, settings_document(settings))

    def forget_run(self) -> None:
        """Remove what is true only while a run lasts."""
        self.run_file.unlink(missing_ok=True)
        self.engine_file.unlink(missing_ok=True)


def known_profiles(root: Path) -> list[ProfileState]:
    """Return every profile that was ever started below `root`, by namespace and name."""
    folders = sorted(path.parent for path in root.glob("*/*/lock"))
    return [ProfileState(root, folder.parent.name, folder.name) for folder in folders]


def next_settings(spec: InferenceProfileSpec, last: LiveSettings | None) -> LiveSettings:
    """Return the settings of a new run: the profile's knobs, with a fence above everything the last run used.

    A new `up` is a new leader, so the epoch grows; the revision moves only when the knobs do.
    """
    if last is None:
        return spec.live_settings()
    wanted = spec.live_settings(epoch=last.epoch + 1, revision=last.revision)
    return wanted if wanted.same_knobs(last) else wanted.model_copy(update={"revision": last.revision + 1})


def ensure_token(path: Path) -> None:
    """Make a random bearer token in a file that only its owner may read, unless there is one already.

    Whole or not at all: a full disk or a kill leaves no empty token behind. Raises CliError.
    """
    try:
        if path.exists() and path.stat().st_size:
            return
        write_atomically(path, secrets.token_urlsafe(32) + "\n", mode=0o600)
    except OSError as error:
        raise CliError(
            f"cannot write the token file {path}: {error.strerror}",
            advice="Make room and see to it that you may write there, or name another folder with PACELINE_STATE_DIR.",
        ) from None


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file, made with `mode` less the umask, so that a reader, or a crash, sees either the old or the new."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.touch(mode)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
