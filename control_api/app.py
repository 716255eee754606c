"""The FastAPI app: its parts put together, its routes, and what runs beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from paceline import __version__
from paceline.control_api import problems
from paceline.control_api.auth import Gate, require_token
from paceline.control_api.cluster.connection import Cluster
from paceline.control_api.cluster.reviews import Reviews
from paceline.control_api.config import ApiConfig, ProfileStoreKind
from paceline.control_api.context import AppContext
from paceline.control_api.db.engine import Database
from paceline.control_api.metrics import Metrics
from paceline.control_api.middleware import BodyLimit, RequestContext
from paceline.control_api.profiles.base import ProfileStore
from paceline.control_api.profiles.engine_client import EngineClient
from paceline.control_api.profiles.kubernetes import KubernetesStore
from paceline.control_api.profiles.local import LocalStore
from paceline.control_api.profiles.local_files import LocalFiles
from paceline.control_api.routes import dashboard, experiments, health, profiles
from paceline.control_api.schemas.common import Problem
from paceline.control_api.services.progress import ProgressHub
from paceline.control_api.services.worker import ExperimentWorker
from paceline.control_api.token_file import TokenFile


def create_app(config: ApiConfig) -> FastAPI:
    """Return the app for a database that has this version's schema already (`db.migrate.migrate`).

    Raises:
        StartupError: the token, the local run's profile or the cluster's key can't be read.
    """
    metrics = Metrics()
    store, gate = _store_and_gate(config, metrics)
    context = AppContext(
        config=config,
        metrics=metrics,
        gate=gate,
        database=Database(config.sqlalchemy_url, pool_size=config.database_pool_size),
        store=store,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        hub = ProgressHub(context.database)
        worker = ExperimentWorker(context, hub)
        app.state.hub, app.state.worker = hub, worker
        await context.store.open()
        worker.start()
        yield
        await worker.stop()
        await hub.close()
        await context.store.close()
        await context.database.close()

    app = FastAPI(
        title="Paceline control API",
        version=__version__,
        description="Profiles, live pacing and measured experiments. Errors are problem documents (RFC 9457).",
        lifespan=lifespan,
        # Both pages would load scripts from a third party's servers.
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    problems.install(app)
    app.include_router(health.router)
    app.include_router(dashboard.router)
    app.mount("/web", dashboard.WebFiles(directory=dashboard.WEB))
    for router in (profiles.router, experiments.router):
        app.include_router(router, dependencies=[Depends(require_token)])
    _describe_problems(app)
    # The last one added sees a request first.
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(RequestContext, metrics=metrics)
    return app


def _store_and_gate(config: ApiConfig, metrics: Metrics) -> tuple[ProfileStore, Gate]:
    if config.profile_store is ProfileStoreKind.KUBERNETES:
        assert config.admin_key_file is not None  # the configuration's validators see to it
        cluster = Cluster(config.kubeconfig)
        return KubernetesStore(cluster, config.admin_key_file, config.namespaces), Reviews(cluster)
    assert config.local_state is not None
    assert config.token_file is not None
    return LocalStore(LocalFiles(config.local_state), EngineClient(), metrics), TokenFile(config.token_file)


def _describe_problems(app: FastAPI) -> None:
    """Put the problem document's schema into the OpenAPI description, which no route names as its own answer."""
    plain = app.openapi

    def described() -> dict[str, object]:
        document = plain()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = document["components"]["schemas"]
        schemas |= schema.pop("$defs", {}) | {"Problem": schema}
        return document

    app.openapi = described  # type: ignore[method-assign]
