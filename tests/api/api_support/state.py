"""The folder of a local run, as `paceline up` writes it."""

import json
from pathlib import Path

from paceline.engine_ext.settings import LiveSettings

API_TOKEN = "api-secret"
PROFILE = """
apiVersion: paceline.dev/v1alpha1
kind: InferenceProfile
metadata: {name: tiny, namespace: lab}
spec:
  model: {source: "file:///models/tiny", servedName: tiny, maxModelLen: 32768}
  engine: {accelerator: CPU}
"""


def write_state(folder: Path, admin_token: str, settings: LiveSettings | None = None) -> Path:
    """Write a local run's folder, without an engine so far, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.yaml").write_text(PROFILE)
    (folder / "settings.json").write_text((settings or LiveSettings()).model_dump_json(by_alias=True))
    (folder / "api-token").write_text(API_TOKEN + "\n")
    (folder / "admin-token").write_text(admin_token + "\n")
    return folder


def point_at_engine(folder: Path, admin_url: str, engine_url: str = "http://127.0.0.1:9") -> None:
    """Say where the engine listens."""
    document = {
        "engineUrl": engine_url,
        "adminUrl": admin_url,
        "adminTokenFile": str(folder / "admin-token"),
        "enginePid": 1,
    }
    (folder / "engine.json").write_text(json.dumps(document))


def kept(state: Path) -> LiveSettings:
    """Return the settings that an engine would start with now."""
    return LiveSettings.model_validate_json((state / "settings.json").read_bytes())
