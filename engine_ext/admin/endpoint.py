"""The entry point of vLLM's endpoint plugins: opens the admin port inside the API process's event loop.

It adds no route to the OpenAI port; the admin port is one of its own, so that a network policy can tell them apart.
"""

import asyncio
import socket
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import REGISTRY
from starlette.datastructures import State
from vllm.logger import init_logger

from paceline.engine_ext.admin.app import build_app
from paceline.engine_ext.admin.cores import EngineCores
from paceline.engine_ext.admin.metrics import EngineCollector
from paceline.engine_ext.admin.monitor import Monitor
from paceline.engine_ext.environment import AdminConfig
from paceline.engine_ext.start import bind_admin_port

logger = init_logger("vllm.paceline")


class _Server(uvicorn.Server):
    """A uvicorn server beside vLLM's own, to which the signals belong."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminEndpoint:
    """vLLM's endpoint plugin protocol."""

    name = "paceline"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add nothing: the OpenAI port stays as it is."""

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Open the admin port; a StartError here ends the engine."""
        config = AdminConfig.from_environ()
        if config is None or engine_client is None:
            logger.warning(
                "paceline: no admin port: %s", "PACELINE_ADMIN_PORT is not set" if config is None else "no engine"
            )
            return
        monitor = Monitor(EngineCores(engine_client.engine_core), config.stall_seconds)
        REGISTRY.register(EngineCollector(monitor))
        serving = serve(build_app(monitor.cores, monitor, config.token), bind_admin_port(config))
        # The loop keeps only weak references to its tasks.
        state.paceline_tasks = [asyncio.create_task(monitor.run()), asyncio.create_task(serving)]
        logger.info("paceline: admin port on http://%s:%d", config.host, config.port)


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until the task is cancelled, which happens when vLLM's event loop ends."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    with suppress(asyncio.CancelledError):
        await _Server(config).serve(sockets=[listener])
