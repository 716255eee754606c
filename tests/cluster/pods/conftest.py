"""Fixtures of the tests on which pods really run: one cluster for all of them, and Paceline installed on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.paceline import Images, chart_values, helm, install, node_mounts


@pytest.fixture(scope="session")
def node_folders() -> dict[str, Path]:
    """What the node shows its pods of this machine: vLLM's packages and the tiny model."""
    return node_mounts()


@pytest.fixture(scope="session")
def images() -> Images:
    """The images of the control plane and of the engine, as they would be built from this checkout."""
    return Images.build()


@pytest.fixture(scope="session")
def cluster(node_folders: dict[str, Path], images: Images) -> Iterator[Cluster]:
    """A whole cluster with Paceline's images on its node, shared by the session's tests."""
    if os.geteuid() != 0:
        pytest.skip("a node needs root: namespaces, mounts and control groups")
    with Cluster.running(node_folders) as running:
        images.load(running)
        yield running


@pytest.fixture(scope="session")
def paceline(cluster: Cluster, images: Images) -> Iterator[Cluster]:
    """The cluster with the chart installed, in the namespace `testbed.paceline.NAMESPACE`, its pods ready."""
    install(cluster, chart_values(images))
    yield cluster
    helm(cluster, "uninstall", "paceline", "--wait")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add what the cluster says of itself to the report of a failed test."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None:
        report.sections.append(("the cluster's logs", cluster.logs()))
        report.sections.append(("the cluster's pods", cluster.describe()))
    return report
