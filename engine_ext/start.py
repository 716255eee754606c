"""What must hold before an engine starts, checked before its model is loaded."""

import os
import socket

from paceline.engine_ext.environment import AdminConfig, StartError, settings_path
from paceline.engine_ext.live import read_settings
from paceline.engine_ext.page_gate.gate import read_mode


def check_start() -> None:
    """Check what the environment names: settings file, page gate, admin token, a free admin port. Raises StartError."""
    read_settings(settings_path())
    read_mode()
    config = AdminConfig.from_environ()
    if config is not None:
        bind_admin_port(config).close()


def bind_admin_port(config: AdminConfig) -> socket.socket:
    """Return a socket that listens on the admin port. Raises StartError when it can't be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=64)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StartError(
            f"the admin port {config.host}:{config.port} can't be opened: {why}; "
            "end what listens there, or choose another PACELINE_ADMIN_PORT"
        ) from error
