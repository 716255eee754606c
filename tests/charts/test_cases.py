"""The cases of the field (C1 to C4, C6), and what else a user may ask of a chart."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from charting import CHART, Helm, Render, pod_specs

from paceline.operator.api.crd import crd
from paceline.operator.api.v1alpha1 import Accelerator
from paceline.operator.config import OperatorConfig

EVERYTHING = Path(__file__).parent / "values" / "everything.yaml"


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def operator_config(objects: list[dict[str, Any]]) -> OperatorConfig:
    (found,) = (each for each in objects if each["kind"] == "ConfigMap")
    return OperatorConfig.from_yaml(found["data"]["operator.yaml"])


@pytest.mark.parametrize("values", [None, EVERYTHING], ids=["defaults", "everything"])
def test_helm_lint_finds_nothing(helm: Helm, values: Path | None) -> None:
    helm("lint", "--strict", CHART, *([] if values is None else ["--values", values]))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_c1_renders_as_a_subchart_with_a_condition_and_global_values(
    render: Render, tmp_path: Path, enabled: str
) -> None:
    dependency = {"name": "paceline", "version": "0.1.0", "condition": "paceline.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "paceline").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    (tmp_path / "values.yaml").write_text("global: {domain: example, imagePullSecrets: [shared]}\n")
    objects = render("--set", f"paceline.enabled={enabled}", chart=tmp_path, release="platform")
    if enabled == "false":
        assert objects == []
    else:
        assert "platform-paceline-operator" in pod_specs(objects)
        assert all(spec["imagePullSecrets"] == [{"name": "shared"}] for spec in pod_specs(objects).values())


def test_c1_a_misspelled_value_is_refused_by_its_name(helm: Helm) -> None:
    answer = helm("template", "paceline", CHART, "--set", "operator.replica=2", check=False)
    assert answer.status != 0
    assert "replica" in answer.stderr
    assert "/operator" in answer.stderr


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("operator.replicas=two", "/operator/replicas"),
        ("api.service.port=70000", "/api/service/port"),
        ("image.digest=latest", "/image/digest"),
        ("engine.modelFolders={models}", "/engine/modelFolders/0"),
        ("engine.modelFolders={/srv/../etc}", "/engine/modelFolders/0"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("api.replicas=2", "PostgreSQL"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_place(helm: Helm, setting: str, complaint: str) -> None:
    answer = helm("template", "paceline", CHART, "--set", setting, check=False)
    assert answer.status != 0
    assert complaint in answer.stderr


def test_the_control_api_looks_for_profiles_where_it_has_permissions(render: Render) -> None:
    objects = render("--set", "watchNamespaces={team-a,team-b}")
    (container,) = pod_specs(objects)["paceline-api"]["containers"]
    assert {"name": "PACELINE_API_NAMESPACES", "value": "team-a,team-b"} in container["env"]
    roles = [each for each in objects if each["kind"] == "Role" and each["metadata"]["name"] == "paceline-api"]
    assert [each["metadata"]["namespace"] for each in roles] == ["team-a", "team-b"]
    (everywhere,) = pod_specs(render())["paceline-api"]["containers"]
    assert "PACELINE_API_NAMESPACES" not in [each["name"] for each in everywhere["env"]]


def test_c2_a_null_user_leaves_the_field_out_everywhere(render: Render) -> None:
    nulls = ",".join(f"podSecurityContext.{field}=null" for field in ("runAsUser", "runAsGroup", "fsGroup"))
    objects = render(
        "--set", nulls, "--set", "engine.securityContext.runAsUser=null,engine.securityContext.fsGroup=null"
    )
    for spec in pod_specs(objects).values():
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert "runAsUser" not in spec["containers"][0]["securityContext"]
    config = operator_config(objects).engine
    assert (config.run_as_user, config.fs_group) == (None, None)


def test_c2_a_user_of_the_clusters_choice_has_somewhere_to_write(render: Render) -> None:
    for spec in pod_specs(render()).values():
        if "volumes" not in spec:
            continue
        container = spec["containers"][0]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"name": "HOME", "value": "/tmp"} in container["env"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]


def test_c3_two_renders_are_alike_and_hold_no_secret(helm: Helm) -> None:
    arguments = ("template", "paceline", CHART, "--values", EVERYTHING)
    first, second = helm(*arguments).stdout, helm(*arguments).stdout
    assert first == second
    assert all(each["kind"] != "Secret" for each in yaml.safe_load_all(first) if each)
    assert all(each["kind"] != "Secret" for each in yaml.safe_load_all(helm("template", "p", CHART).stdout) if each)


def test_c3_an_existing_secret_is_mounted_and_is_all_that_the_operator_reads(render: Render) -> None:
    objects = render("--set", "adminKey.existingSecret=our-key")
    assert operator_config(objects).token_secret == "our-key"
    volumes = pod_specs(objects)["paceline-api"]["volumes"]
    assert {"name": "admin-key", "secret": {"secretName": "our-key"}} in volumes
    rules = one(objects, "Role", "paceline-operator-own")["rules"]
    assert [rule for rule in rules if "secrets" in rule["resources"]] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["our-key"], "verbs": ["get"]}
    ]


@pytest.mark.parametrize("how", ["--set", "--values"])
def test_c4_large_integers_stay_plain(render: Render, tmp_path: Path, how: str) -> None:
    if how == "--set":
        arguments: list[object] = [
            *("--set", "image.tag=20161216,engine.images.cpu.tag=1048576"),
            *("--set", "engine.securityContext.runAsUser=1000680000,podSecurityContext.runAsUser=1048576"),
        ]
    else:
        values = tmp_path / "values.yaml"
        values.write_text(
            "image: {tag: 20161216}\n"
            "engine: {images: {cpu: {tag: 1048576}}, securityContext: {runAsUser: 1000680000}}\n"
            "podSecurityContext: {runAsUser: 1048576}\n"
        )
        arguments = ["--values", values]
    objects = render(*arguments)
    spec = pod_specs(objects)["paceline-operator"]
    assert spec["containers"][0]["image"] == "paceline/control-plane:20161216"
    assert spec["securityContext"]["runAsUser"] == 1048576
    config = operator_config(objects).engine
    assert config.images[Accelerator.CPU] == "paceline/engine-cpu:1048576"
    assert config.run_as_user == 1000680000


def test_c6_registry_secrets_reach_every_pod_and_the_engines(render: Render) -> None:
    objects = render("--set", "imagePullSecrets[0].name=registry,global.imagePullSecrets={shared}")
    specs = pod_specs(objects)
    assert set(specs) == {"paceline-operator", "paceline-api", "paceline-test"}
    for spec in specs.values():
        assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "shared"}]
    assert operator_config(objects).engine.image_pull_secrets == ["registry", "shared"]


def test_the_definition_is_the_generated_one_and_is_kept(render: Render) -> None:
    definition = one(render(), "CustomResourceDefinition", "inferenceprofiles.paceline.dev")
    assert definition["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert definition == crd()


def test_two_releases_in_a_cluster_share_no_cluster_wide_name(render: Render) -> None:
    def cluster_wide(release: str) -> set[tuple[str, str]]:
        kinds = {"ClusterRole", "ClusterRoleBinding"}
        objects = render("--set", "aggregateRoles=true", release=release)
        return {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] in kinds}

    assert cluster_wide("one") & cluster_wide("two") == set()


def test_named_namespaces_get_roles_there_and_nothing_is_granted_elsewhere(render: Render) -> None:
    objects = render("--set", "watchNamespaces={team-a,team-b}")
    assert operator_config(objects).watch.namespaces == ["team-a", "team-b"]
    granted = {
        (resource, verb)
        for each in objects
        if each["kind"] == "ClusterRole" and "aggregate" not in str(each["metadata"]["labels"])
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        ("customresourcedefinitions", "get"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
    }
    places = [each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"]
    assert sorted(places) == ["paceline-system", "team-a", "team-a", "team-b", "team-b"]


def test_no_role_reads_secrets_but_the_operators_own_key(render: Render) -> None:
    for each in render("--values", EVERYTHING, "--set", "adminKey.existingSecret="):
        for rule in each.get("rules", ()):
            if "secrets" in rule["resources"]:
                own = rule.get("resourceNames") == ["paceline-pl-admin-key"]
                assert rule["verbs"] == (["get"] if own else ["create"])
            assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]
            assert not {"nodes", "pods/exec", "pods/log"} & set(rule["resources"])


def test_notes_name_the_release_and_warn_of_a_database_that_goes_with_its_pod(helm: Helm) -> None:
    arguments = ("install", "mine", CHART, "--namespace", "here", "--dry-run=client", "--set", "crds.enabled=false")
    notes = helm(*arguments, "--set", "api.database.persistence.enabled=false").stdout.partition("NOTES:")[2]
    assert "kubectl -n here rollout status deployment/mine-paceline-operator" in notes
    assert "service/mine-paceline-api" in notes
    assert "WARNING: api.database.persistence.enabled is false" in notes
    assert "WARNING" not in helm(*arguments).stdout.partition("NOTES:")[2]


def test_the_schema_knows_no_value_that_the_file_of_values_does_not_show() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def hidden(values: dict[str, Any], part: dict[str, Any], path: str) -> set[str]:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        known = part.get("properties", {})
        missing = {f"{path}{name}" for name in known if name not in values}
        inner = {name: value for name, value in values.items() if name in known and isinstance(value, dict)}
        return missing.union(*(hidden(value, known[name], f"{path}{name}.") for name, value in inner.items()))

    assert hidden(values, schema, "") == {
        *("global", "enabled"),
        *("engine.images.cpu.digest", "engine.images.nvidia.digest"),
        *("operator.resources.claims", "api.resources.claims"),
    }
