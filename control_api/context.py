"""The parts of a running app, made once at its start."""

from dataclasses import dataclass

from paceline.control_api.auth import Gate
from paceline.control_api.config import ApiConfig
from paceline.control_api.db.engine import Database
from paceline.control_api.metrics import Metrics
from paceline.control_api.profiles.base import ProfileStore


@dataclass(frozen=True)
class AppContext:
    """What routes work with."""

    config: ApiConfig
    metrics: Metrics
    gate: Gate
    database: Database
    store: ProfileStore
