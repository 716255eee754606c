"""The folder of a local run: what `paceline up` writes there, and the settings that we keep in it."""

import os
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from paceline.control_api.errors import StateFileError
from paceline.control_api.profiles.base import EngineAccess
from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import InferenceProfile


class EngineFile(BaseModel):
    """`engine.json`: where the running engine listens."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    engine_url: str
    admin_url: str
    admin_token_file: Path


class LocalFiles:
    """The files of one local run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def profile(self) -> InferenceProfile:
        """Return the profile that was started. Raises StateFileError."""
        path = self.folder / "profile.yaml"
        try:
            return InferenceProfile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError, ValidationError) as error:
            message = f"{path} can't be read as a profile: {_short(error)}. `paceline up PROFILE.yaml` writes it"
            raise StateFileError(message) from error

    def settings(self) -> LiveSettings:
        """Return the wanted settings; those of the profile where none were kept yet. Raises StateFileError."""
        path = self.folder / "settings.json"
        try:
            return LiveSettings.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return self.profile().spec.live_settings()
        except (OSError, ValidationError) as error:
            message = (
                f"{path} can't be read as live settings: {_short(error)}. Remove it to start from the profile's pacing"
            )
            raise StateFileError(message) from error

    def write_settings(self, settings: LiveSettings) -> None:
        """Replace the wanted settings; after a crash the file holds either the old or the new ones, whole.

        Raises StateFileError, with the old ones still there.
        """
        path = self.folder / "settings.json"
        part = path.with_name(f".settings.json.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(settings.model_dump_json(by_alias=True, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            message = (
                f"{path} can't be written: {error.strerror}. Nothing was changed: make room or give the right to write"
            )
            raise StateFileError(message) from error
        directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def engine(self) -> EngineAccess | None:
        """Return where the engine listens; None while none is started or the file is being replaced."""
        try:
            found = EngineFile.model_validate_json((self.folder / "engine.json").read_bytes())
            token = found.admin_token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValidationError):
            return None
        return EngineAccess(found.engine_url, found.admin_url, token)


def _short(error: Exception) -> str:
    """Return what is wrong on one line, without the values: a profile's environment may hold secrets."""
    if isinstance(error, ValidationError):
        issues = error.errors(include_url=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in issues)
    return str(error)
