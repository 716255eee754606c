"""The entry point of vLLM's general plugins: runs in every process of an engine, before anything else is built."""

import multiprocessing
import socket
import sys

from vllm.logger import init_logger

from paceline.engine_ext.environment import AdminConfig, StartError, settings_path
from paceline.engine_ext.live import read_settings

logger = init_logger("vllm.paceline")


def register() -> None:
    """Prepare this process; an engine that can't start as told ends here, before its model is loaded.

    vLLM calls it once in each process, and sometimes again.
    """
    if multiprocessing.parent_process() is None:
        try:
            check_start()
        except StartError as error:
            logger.error("paceline: %s", error)  # noqa: TRY400 - the message says it all, a traceback would hide it
            sys.exit(f"paceline: {error}")
    from vllm.v1.engine.core import EngineCore  # here: vLLM may load plugins while it imports its core

    from paceline.engine_ext import utility
    from paceline.engine_ext.coalescing import patches

    utility.install(EngineCore)
    patches.install()


def check_start() -> None:
    """Check what the environment names: the settings file, the admin token, a free admin port. Raises StartError."""
    read_settings(settings_path())
    config = AdminConfig.from_environ()
    if config is not None:
        bind_admin_port(config).close()


def bind_admin_port(config: AdminConfig) -> socket.socket:
    """Return a socket that listens on the admin port. Raises StartError when it can't be had."""
    try:
        return socket.create_server((config.host, config.port), backlog=64)
    except OSError as error:
        raise StartError(
            f"the admin port {config.host}:{config.port} can't be opened: {error.strerror or error}; "
            "end what listens there, or choose another PACELINE_ADMIN_PORT"
        ) from error
