"""The admin port on a vLLM that has no endpoint plugins (before 0.26): opened when its API server starts.

vLLM calls `register_vllm_serve_api_routers` while it builds its application, and runs that application's lifespan once
the engine client stands in its state: the moment at which newer versions call their endpoint plugins.
"""

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, Final

ENDPOINT_PLUGINS: Final = "vllm.plugins.endpoint_plugins"


@cache
def install() -> None:
    """Wrap the registration of routes where vLLM has no endpoint plugins; doing so again changes nothing."""
    if find_spec(ENDPOINT_PLUGINS) is None:
        serve: Any = importlib.import_module("vllm.entrypoints.serve")
        serve.register_vllm_serve_api_routers = _wrap(serve.register_vllm_serve_api_routers)


def _wrap(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(original)
    def register(app: Any) -> None:
        original(app)
        app.router.lifespan_context = _with_admin_port(app.router.lifespan_context)

    return register


def _with_admin_port(lifespan: Any) -> Any:
    @asynccontextmanager
    async def with_admin_port(app: Any) -> AsyncIterator[Any]:
        from paceline.engine_ext.admin.endpoint import AdminEndpoint  # here: engine cores don't need a web server

        async with lifespan(app) as state:
            await AdminEndpoint().init_state(getattr(app.state, "engine_client", None), app.state, app.state.args)
            yield state

    return with_admin_port
