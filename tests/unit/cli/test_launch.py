"""The command lines and environments of a run's processes."""

import sys
from pathlib import Path

from paceline.cli.local.launch import Addresses, Placement, inherited, plan_launch
from paceline.cli.local.state import ProfileState
from paceline.operator.api.v1alpha1 import InferenceProfile

STATE = ProfileState(Path("/state"), "team", "tiny")
PROFILE = InferenceProfile.model_validate(
    {
        "metadata": {"name": "tiny", "namespace": "team"},
        "spec": {"model": {"source": "file:///m", "servedName": "small"}, "engine": {"accelerator": "CPU"}},
    }
)
PLACEMENT = Placement("/engine/python", "/profiles/tiny.yaml", 60, 20)


def test_both_processes_find_each_other_through_the_state_folder() -> None:
    launch = plan_launch(STATE, PROFILE, Addresses("127.0.0.1", 8000, 8600, 8700), PLACEMENT)
    assert launch.engine.argv[:4] == ("/engine/python", "-P", "-m", "vllm.entrypoints.openai.api_server")
    assert launch.engine.argv[launch.engine.argv.index("--port") + 1] == "8000"
    assert (
        launch.engine.env.items()
        >= {
            "PACELINE_ADMIN_HOST": "127.0.0.1",
            "PACELINE_ADMIN_PORT": "8600",
            "PACELINE_ADMIN_TOKEN_FILE": "/state/team/tiny/admin-token",
            "PACELINE_SETTINGS_FILE": "/state/team/tiny/settings.json",
        }.items()
    )
    assert launch.api.argv == (sys.executable, "-P", "-m", "paceline.control_api")
    assert {name: value for name, value in launch.api.env.items() if name.startswith("PACELINE_API_")} == {
        "PACELINE_API_HOST": "127.0.0.1",
        "PACELINE_API_PORT": "8700",
        "PACELINE_API_DATABASE_URL": "sqlite:////state/paceline.sqlite3",
        "PACELINE_API_TOKEN_FILE": "/state/team/tiny/api-token",
        "PACELINE_API_PROFILE_STORE": "local",
        "PACELINE_API_LOCAL_STATE": "/state/team/tiny",
    }
    assert (launch.record.engine_url, launch.record.admin_url, launch.record.api_url) == (
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8600",
        "http://127.0.0.1:8700",
    )
    assert launch.record.served_model == "small"


def test_an_engine_that_listens_everywhere_is_reached_by_loopback() -> None:
    everywhere = plan_launch(STATE, PROFILE, Addresses("0.0.0.0", 1, 2, 3), PLACEMENT)
    assert everywhere.record.engine_url == "http://127.0.0.1:1"
    assert everywhere.engine.argv[everywhere.engine.argv.index("--host") + 1] == "0.0.0.0"
    six = plan_launch(STATE, PROFILE, Addresses("::1", 1, 2, 3), PLACEMENT)
    assert six.record.engine_url == "http://[::1]:1"


def test_children_do_not_inherit_what_would_mislead_them() -> None:
    environment = {
        "PATH": "/bin",
        "HF_TOKEN": "t",
        "PACELINE_STATE_DIR": "/s",
        "PYTHONPATH": "/elsewhere",
        "VIRTUAL_ENV": "/venv",
        "PACELINE_API_URL": "http://remote",
        "PACELINE_ADMIN_PORT": "1",
    }
    assert inherited(environment) == {"PATH": "/bin", "HF_TOKEN": "t", "PACELINE_STATE_DIR": "/s"}
