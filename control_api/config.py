"""The control API's configuration, read from environment variables `PACELINE_API_*`."""

import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from paceline.control_api.errors import StartupError
from paceline.operator.api.v1alpha1 import DnsLabel

PREFIX: Final = "PACELINE_API_"
CLIENT_VARIABLE: Final = "PACELINE_API_URL"
"""Tells the commands where the control API is, and means nothing to the control API itself."""


class ProfileStoreKind(StrEnum):
    """Where profiles live: the folder of a local run, or a Kubernetes cluster."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


class LogFormat(StrEnum):
    """How log lines look: JSON for machines, columns for a terminal."""

    JSON = "json"
    CONSOLE = "console"


class ApiConfig(BaseModel):
    """Everything that the control API is told at its start.

    The database's password may stand in `database_url` (percent-encoded) or, as it is, in `database_password_file`.
    Neither is ever logged.

    A local run needs `local_state`. In a cluster `admin_key_file` is the operator's key, `namespaces` those that
    profiles are looked for in (none named: all), and `kubeconfig` leads there from outside of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8700
    profile_store: ProfileStoreKind = ProfileStoreKind.LOCAL
    local_state: Path | None = None
    token_file: Path | None = None
    admin_key_file: Path | None = None
    kubeconfig: Path | None = None
    namespaces: tuple[DnsLabel, ...] = ()
    database_url: SecretStr
    database_password_file: Path | None = None
    database_pool_size: Annotated[int, Field(ge=1, le=100)] = 5
    max_body_bytes: Annotated[int, Field(ge=1_024)] = 1_048_576
    run_lease_seconds: Annotated[int, Field(ge=1, le=3_600)] = 30
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: LogFormat = LogFormat.JSON

    @model_validator(mode="before")
    @classmethod
    def _fill_from_local_state(cls, values: dict[str, object]) -> dict[str, object]:
        in_cluster = values.get("profile_store") == ProfileStoreKind.KUBERNETES
        needed = "admin_key_file" if in_cluster else "local_state"
        if values.get(needed) is None:
            raise ValueError(f"{PREFIX}{needed.upper()}: is not set")
        state = values.get("local_state")
        if state is None or in_cluster:
            return values
        folder = Path(str(state))
        return {"token_file": folder / "api-token", "database_url": f"sqlite:///{folder / 'paceline.db'}", **values}

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _url_is_understood(cls, value: SecretStr) -> SecretStr:
        _driver_url(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _local_runs_stay_local(self) -> Self:
        if self.profile_store is ProfileStoreKind.LOCAL and not _is_loopback(self.host):
            message = (
                f"host {self.host} is reachable from other machines, and a local run has no users to tell apart: "
                "use 127.0.0.1 and forward the port (ssh -L 8700:127.0.0.1:8700 machine)"
            )
            raise ValueError(message)
        return self

    @property
    def sqlalchemy_url(self) -> URL:
        """The database's address with its async driver and the password in place."""
        url = _driver_url(self.database_url.get_secret_value())
        if self.database_password_file is None:
            return url
        try:
            password = self.database_password_file.read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            message = f"{PREFIX}DATABASE_PASSWORD_FILE can't be read: {error}"
            raise StartupError(message) from error
        return url.set(password=password)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "ApiConfig":
        """Read `PACELINE_API_*`; an unknown variable of that prefix is an error, since it is most likely a typo."""
        values = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(PREFIX) and name != CLIENT_VARIABLE
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise StartupError(_explain(error)) from error


def _driver_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
    backend = url.drivername.split("+")[0] if url else ""
    if url is None or backend not in drivers or "@" in (url.host or ""):
        message = (
            "must look like sqlite:////path/to/file.db or postgresql://user:password@host:5432/database; "
            "percent-encode special characters of the password (@ is %40), or give it in a file: "
            f"{PREFIX}DATABASE_PASSWORD_FILE"
        )
        raise ValueError(message) from None
    return url.set(drivername=drivers[backend])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _explain(error: ValidationError) -> str:
    lines = ["the control API's configuration is not valid:"]
    for issue in error.errors(include_url=False, include_input=False):
        name = PREFIX + str(issue["loc"][0]).upper() if issue["loc"] else ""
        what = issue["msg"].removeprefix("Value error, ")
        if issue["type"] == "extra_forbidden":
            what = "is not a known setting"
        elif issue["type"] == "missing":
            what = "is not set"
        lines.append(f"  {name}: {what}" if name else f"  {what}")
    return "\n".join(lines)
