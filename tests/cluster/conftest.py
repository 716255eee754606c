"""Fixtures of the tests on a real Kubernetes."""

import secrets
from collections.abc import Iterator

import httpx
import pytest
from apilab import ControlApi, token_of
from oplab import Api, FakeEngines, Lab, new_space, profile_api
from oplab.operator import KEY

from testbed import ApiServer


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """A real API server with etcd, shared by the session's tests; no kubelet, and no controllers unless started.

    A test that stops or pauses it leaves it ready, and no test takes more than its own namespace, or names of its own.
    """
    with ApiServer.running() as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace of the test's own with its default service account, deleted at the end."""
    name = f"test-{secrets.token_hex(4)}"
    api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api_server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
    yield name
    # Without the namespace controller nobody empties it: the whole cluster goes at the session's end.
    api_server.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def bare_server() -> Iterator[ApiServer]:
    """An API server without any controller, for tests that make pods and write their statuses by hand."""
    with ApiServer.running() as server:
        yield server


@pytest.fixture(scope="session")
def admin(bare_server: ApiServer) -> Iterator[Api]:
    """The administrator's client of the bare server, which has the InferenceProfile definition."""
    with profile_api(bare_server) as api:
        yield api


@pytest.fixture
def space(admin: Api) -> Iterator[str]:
    """A namespace of the test's own on the bare server, made without a process; it has no service account."""
    with new_space(admin) as name:
        yield name


@pytest.fixture(scope="session")
def engines() -> Iterator[FakeEngines]:
    """Fake engines on the loopback addresses that pods of the tests have."""
    with FakeEngines.serving() as serving:
        yield serving


@pytest.fixture
def lab(bare_server: ApiServer, admin: Api, engines: FakeEngines, space: str) -> Lab:
    """A namespace with engines on the bare server, for an operator to work in."""
    return Lab(bare_server, admin, engines, space)


@pytest.fixture(scope="session")
def control_api(bare_server: ApiServer, admin: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlApi]:
    """The control API of the bare server, under its chart's rights."""
    with ControlApi.running(bare_server, tmp_path_factory.mktemp("control-api"), KEY) as running:
        yield running


@pytest.fixture
def client(control_api: ControlApi, lab: Lab) -> Iterator[httpx.Client]:
    """A client that may read and change the profiles of the lab's namespace."""
    token = token_of(lab.api, lab.space, "editor", ["get", "list", "patch"])
    with control_api.client(token) as http:
        yield http


@pytest.fixture(scope="session")
def controlled_admin(api_server: ApiServer) -> Iterator[Api]:
    """The administrator's client of the shared server, with the controllers at work and the definition installed."""
    api_server.start_controller_manager()
    with profile_api(api_server) as api:
        yield api


@pytest.fixture
def controlled_lab(api_server: ApiServer, controlled_admin: Api, engines: FakeEngines) -> Iterator[Lab]:
    """A lab where Kubernetes' own controllers make pods and collect garbage."""
    with new_space(controlled_admin) as name:
        yield Lab(api_server, controlled_admin, engines, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the end of the cluster's logs to the report of a failed test."""
    report = yield
    servers = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, ApiServer)]
    if report.failed and servers:
        report.sections.append(("the cluster's logs", "\n".join(server.logs() for server in servers)))
    return report
