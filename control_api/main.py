"""The program `python -P -m paceline.control_api`: configured by environment variables, see `config.ApiConfig`."""

import asyncio
import os
import socket
import sys
from typing import Final

import structlog
import uvicorn

from paceline.control_api import logs
from paceline.control_api.app import create_app
from paceline.control_api.config import ApiConfig
from paceline.control_api.db.migrate import migrate
from paceline.control_api.errors import StartupError

GRACEFUL_SHUTDOWN_SECONDS: Final = 5
KEEP_ALIVE_SECONDS: Final = 60
"""Longer than clients keep an idle connection (httpx: 5), so that no request meets one that is just being closed."""

_log = structlog.get_logger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises StartupError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        message = f"can't listen on {host}:{port}: {error.strerror}. Choose another port with PACELINE_API_PORT"
        raise StartupError(message) from error
    return listener


def serve(config: ApiConfig) -> None:
    """Migrate the database and serve until a signal to stop. Raises StartupError."""
    listener = bind(config.host, config.port)
    asyncio.run(migrate(config.sqlalchemy_url))
    app = create_app(config)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
        )
    )
    host, port = listener.getsockname()[:2]
    _log.info("listening", url=f"http://{host}:{port}", store=str(config.profile_store))
    server.run(sockets=[listener])


def main() -> int:
    """Run the control API; return 1 with a message on standard error when it can't start."""
    try:
        config = ApiConfig.from_environment(os.environ)
        logs.configure(config.log_level, config.log_format)
        serve(config)
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
