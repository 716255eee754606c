"""Fixtures of the tests on a real Kubernetes."""

import secrets
from collections.abc import Iterator

import pytest
from oplab import Api, FakeEngines, Lab, profile_api

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
def admin(api_server: ApiServer) -> Iterator[Api]:
    """The administrator's client of a server that has the InferenceProfile definition."""
    with profile_api(api_server) as api:
        yield api


@pytest.fixture
def space(admin: Api) -> Iterator[str]:
    """A namespace of the test's own, made and removed without a process; it has no service account."""
    name = f"test-{secrets.token_hex(4)}"
    admin.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    admin.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def engines() -> Iterator[FakeEngines]:
    """Fake engines on the loopback addresses that pods of the tests have."""
    with FakeEngines.serving() as serving:
        yield serving


@pytest.fixture
def lab(api_server: ApiServer, admin: Api, engines: FakeEngines, space: str) -> Lab:
    """A namespace with engines, for an operator to work in."""
    return Lab(api_server, admin, engines, space)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the end of the cluster's logs to the report of a failed test."""
    report = yield
    server = getattr(item, "funcargs", {}).get("api_server")
    if report.failed and server is not None:
        report.sections.append(("the cluster's logs", server.logs()))
    return report
