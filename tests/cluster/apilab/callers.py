"""Callers of the control API: ServiceAccounts with Roles on profiles."""

from collections.abc import Sequence

from oplab import Api

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def token_of(api: Api, namespace: str, name: str, verbs: Sequence[str] = ()) -> str:
    """Make a ServiceAccount that may do `verbs` to the profiles of its namespace, and return a token of it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.call("POST", accounts, {"metadata": {"name": name}})
    if verbs:
        rule = {"apiGroups": ["paceline.dev"], "resources": ["inferenceprofiles"], "verbs": list(verbs)}
        api.call("POST", f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": name}, "rules": [rule]})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        api.call("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(api.call("POST", f"{accounts}/{name}/token", request)["status"]["token"])
