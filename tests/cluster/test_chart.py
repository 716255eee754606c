"""What the chart renders is accepted by a real API server."""

from pathlib import Path

import pytest

from testbed import ApiServer
from testbed.commands import ROOT, kubernetes_command, run

VALUES = sorted((ROOT / "tests" / "charts" / "values").glob("*.yaml"))


@pytest.mark.parametrize("values", VALUES, ids=[path.stem for path in VALUES])
def test_the_api_server_takes_every_object_without_a_warning(
    api_server: ApiServer, namespace: str, values: Path
) -> None:
    chart = ROOT / "charts" / "paceline"
    # No kinds of other projects here, and no namespaces but the test's.
    settings = f"monitoring.enabled=false,watchNamespaces={{{namespace}}}"
    arguments = ("template", "p", chart, "--namespace", namespace, "--values", values, "--set", settings)
    manifests = run([kubernetes_command("helm"), *arguments]).stdout
    apply = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", "-")
    answer = api_server.kubectl(*apply, stdin=manifests)
    assert answer.stderr == ""
    assert answer.stdout.count("serverside-applied (server dry run)") == manifests.count("\nkind: ")
