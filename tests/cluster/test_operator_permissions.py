"""The operator under the rights that the chart gives it: enough for all that it does, and not one more."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from oplab import Api, Lab, RefusedError

from paceline.operator.kube.resources import PROFILES, SECRETS
from testbed.commands import kubernetes_command

CHART = Path(__file__).parents[2] / "charts" / "paceline"


def chart_objects(space: str) -> list[dict[str, Any]]:
    """Return the chart's objects for the operator, as Helm renders them."""
    helm = kubernetes_command("helm")
    values = {"watchNamespaces": [space], "api": {"enabled": False}, "crds": {"enabled": False}}
    command = [helm, "template", "paceline", CHART, "--namespace", space, "-f", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


@pytest.fixture
def restricted(lab: Lab, tmp_path: Path) -> tuple[Path, str]:
    """A kubeconfig for the chart's ServiceAccount of the operator, and the account's user name."""
    objects = chart_objects(lab.space)
    wanted = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    lab.server.apply(*(item for item in objects if item["kind"] in wanted))
    (account,) = [
        item["metadata"]["name"]
        for item in objects
        if item["kind"] == "ServiceAccount" and "operator" in item["metadata"]["name"]
    ]
    token = lab.server.token_for(lab.space, account)
    path = lab.server.kubeconfig_for(token, path=tmp_path / "operator.kubeconfig", namespace=lab.space)
    return path, f"system:serviceaccount:{lab.space}:{account}"


def test_the_rights_suffice_for_a_profiles_life(lab: Lab, restricted: tuple[Path, str]) -> None:
    kubeconfig, user = restricted
    with lab.operator(access=kubeconfig) as operator:
        pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2})
        lab.change("web", {"pacing": {"mode": "Fixed", "interval": 8}})
        lab.wait(lambda: all(pod.engine.settings.revision == 2 for pod in pods), "a hot change")
        lab.change("web", {"engine": {"maxNumSeqs": 4}, "rollout": {"strategy": "RollingUpdate"}})
        lab.wait(lambda: "--max-num-seqs" in str(lab.deployment()["spec"]["template"]), "a cold change")
        lab.change("web", {"rollout": {"strategy": "Recreate"}, "engine": {"replicas": 1}})
        lab.wait(lambda: lab.deployment()["spec"]["strategy"]["type"] == "Recreate", "back")
        lab.api.delete(PROFILES, lab.space, "web")
        lab.wait(lambda: operator.is_idle, "idle")
    refused = Counter(
        (event["verb"], event["objectRef"].get("resource"))
        for event in lab.server.audit_events(user)
        if event["responseStatus"]["code"] == 403
    )
    assert refused == {}


FORBIDDEN = [
    ("GET", "/api/v1/namespaces/{space}/secrets"),
    ("GET", "/api/v1/namespaces/{space}/secrets/users-own"),
    ("GET", "/api/v1/namespaces/{other}/secrets"),
    ("GET", "/api/v1/namespaces/{other}/secrets/users-own"),
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/nodes"),
    ("PATCH", "/api/v1/nodes/node0"),
    ("POST", "/api/v1/namespaces/{space}/pods"),
    ("DELETE", "/api/v1/namespaces/{space}/pods/any"),
    ("GET", "/api/v1/namespaces/{other}/pods"),
    ("GET", "/apis/apps/v1/namespaces/{other}/deployments"),
    ("GET", "/apis/apps/v1/deployments"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/rolebindings"),
    ("POST", "/api/v1/namespaces/{space}/serviceaccounts/default/token"),
    ("DELETE", "/apis/paceline.dev/v1alpha1/namespaces/{space}/inferenceprofiles/web"),
    ("PATCH", "/apis/paceline.dev/v1alpha1/namespaces/{space}/inferenceprofiles/web"),
    ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceprofiles.paceline.dev"),
    ("POST", "/api/v1/namespaces/{space}/pods/any/exec"),
    ("GET", "/api/v1/namespaces/{space}/pods/any/log"),
]


@pytest.mark.parametrize(("verb", "path"), FORBIDDEN, ids=[" ".join(row) for row in FORBIDDEN])
def test_the_rights_do_not_cover(lab: Lab, restricted: tuple[Path, str], verb: str, path: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users-own", "namespace": lab.space}}
    lab.api.create(secret)
    assert lab.api.get(SECRETS, lab.space, "users-own")
    api = Api(restricted[0], lab.server.ca_file)
    kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
    with pytest.raises(RefusedError) as refused:
        api.call(verb, path.format(space=lab.space, other="kube-system"), {}, kind)
    api.close()
    assert refused.value.status == 403
