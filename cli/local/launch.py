"""Builds what a run starts: both command lines with their environments, and the run file. Pure."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from paceline.cli.local.state import ProfileState, RunRecord
from paceline.cli.local.supervisor import Command, Launch
from paceline.operator.api.v1alpha1 import InferenceProfile
from paceline.operator.specs.engine_command import EngineLaunch, engine_command, model_location

LOOPBACK = "127.0.0.1"
SHADOWING = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
"""Variables that would make a child's interpreter load this environment's packages instead of its own."""


@dataclass(frozen=True)
class Addresses:
    """Where the parts of a run listen; the admin port and the control API on loopback only."""

    host: str
    engine_port: int
    admin_port: int
    api_port: int


@dataclass(frozen=True)
class Placement:
    """The rest of what a run is told on the command line."""

    engine_python: str
    profile_file: str
    start_timeout_seconds: float
    stop_grace_seconds: float


def plan_launch(
    state: ProfileState,
    profile: InferenceProfile,
    addresses: Addresses,
    placement: Placement,
) -> Launch:
    """Return the launch of a profile."""
    engine = engine_command(
        profile.spec,
        EngineLaunch(
            python=placement.engine_python,
            host=addresses.host,
            port=addresses.engine_port,
            admin_host=LOOPBACK,
            admin_port=addresses.admin_port,
            admin_token_file=str(state.admin_token_file),
            settings_file=str(state.settings_file),
        ),
    )
    return Launch(
        state=state,
        record=_record(state, profile, addresses, placement.profile_file),
        engine=Command(engine.argv, {**inherited(os.environ), **engine.env}),
        api=Command(
            (sys.executable, "-P", "-m", "paceline.control_api"),
            {**inherited(os.environ), **api_environment(state, addresses.api_port)},
        ),
        start_timeout_seconds=placement.start_timeout_seconds,
        engine_grace_seconds=placement.stop_grace_seconds,
    )


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that children inherit: none that shadows packages, none that is Paceline's own."""
    return {
        name: value
        for name, value in environment.items()
        if name not in SHADOWING and not name.startswith(("PACELINE_API_", "PACELINE_ADMIN_"))
    }


def api_environment(state: ProfileState, port: int) -> dict[str, str]:
    """Return the variables that configure the control API of a local run."""
    return {
        "PACELINE_API_HOST": LOOPBACK,
        "PACELINE_API_PORT": str(port),
        "PACELINE_API_DATABASE_URL": f"sqlite:///{state.database}",
        "PACELINE_API_TOKEN_FILE": str(state.api_token_file),
        "PACELINE_API_PROFILE_STORE": "local",
        "PACELINE_API_LOCAL_STATE": str(state.folder),
    }


def _record(state: ProfileState, profile: InferenceProfile, addresses: Addresses, profile_file: str) -> RunRecord:
    # Everyone on this machine, the control API too, reaches an engine that listens everywhere by the loopback address.
    host = LOOPBACK if addresses.host in ("0.0.0.0", "::") else addresses.host
    shown = f"[{host}]" if ":" in host else host
    return RunRecord(
        namespace=state.namespace,
        name=state.name,
        up_pid=os.getpid(),
        engine_url=f"http://{shown}:{addresses.engine_port}",
        admin_url=f"http://{LOOPBACK}:{addresses.admin_port}",
        api_url=f"http://{LOOPBACK}:{addresses.api_port}",
        api_token_file=str(state.api_token_file),
        profile_file=profile_file,
        served_model=profile.spec.model.served_name or model_location(profile.spec.model.source)[0],
        started_at=datetime.now(UTC).isoformat(),
    )
