"""The settings that a running engine obeys: read once at start, swapped between two steps afterwards."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from paceline.engine_ext.environment import SETTINGS_FILE, StartError
from paceline.engine_ext.settings import LiveSettings, Verdict, judge


def read_settings(path: Path | None) -> LiveSettings:
    """Read the settings to start with; the defaults (unpaced) where no file was named.

    Raises StartError for a file that is missing or holds anything but valid settings.
    """
    if path is None:
        return LiveSettings()
    try:
        return LiveSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StartError(f"the live settings can't be read from {SETTINGS_FILE}={path}: {error}") from error
    except ValidationError as error:
        raise StartError(f"the live settings in {SETTINGS_FILE}={path} are invalid: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """Return pydantic's findings in one line, each with the place in the document."""
    return "; ".join(
        f"{'.'.join(str(part) for part in finding['loc']) or 'document'}: {finding['msg']}"
        for finding in error.errors(include_url=False, include_input=False)
    )


@dataclass(frozen=True)
class Applied:
    """What an engine did with settings that reached it, and what it runs now."""

    verdict: Verdict
    running: LiveSettings


def decide(running: LiveSettings, incoming: LiveSettings) -> Applied:
    """Return what runs after `incoming` reached an engine that runs `running`: the fence decides."""
    verdict = judge(running, incoming)
    return Applied(verdict, incoming if verdict is Verdict.APPLY else running)
