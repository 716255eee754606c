"""The CRD: structural, bounded, with its defaults, and one with the pydantic types that local runs validate against."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from paceline.operator.api.crd import MAX_BYTES, SCHEMA_HASH_ANNOTATION, crd, crd_yaml, schema_hash
from paceline.operator.api.rules import RULES
from paceline.operator.api.structural import structural_schema
from paceline.operator.api.v1alpha1 import InferenceProfile, InferenceProfileSpec
from paceline.operator.specs.engine_args import OWNED, RESERVED

VERSION = crd()["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
SPEC = ROOT["properties"]["spec"]


def nodes(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


ALL_NODES = [*nodes(SPEC), *nodes(ROOT["properties"]["status"], "status")]


def test_the_yaml_is_the_crd_and_fits_into_an_annotation() -> None:
    text = crd_yaml()
    assert yaml.safe_load(text) == crd()
    assert len(text.encode()) < MAX_BYTES


@pytest.mark.parametrize(("path", "node"), ALL_NODES, ids=[path for path, _ in ALL_NODES])
def test_every_node_is_structural_and_bounded(path: str, node: dict[str, Any]) -> None:
    assert not {"$ref", "anyOf", "allOf", "oneOf", "const", "title", "$defs", "propertyNames"} & node.keys()
    assert node.get("type") in {"string", "integer", "object", "array"} or node["x-kubernetes-int-or-string"]
    kind = node.get("type")
    if kind == "string":
        assert {"maxLength", "enum", "format"} & node.keys(), "an unbounded string"
    if kind == "array":
        assert "maxItems" in node
    if kind == "integer":
        assert "minimum" in node
    if kind == "integer" and path.startswith("spec"):
        assert "maximum" in node
    if kind == "object":
        assert "maxProperties" in node or node["properties"]


@pytest.mark.parametrize(("path", "node"), ALL_NODES, ids=[path for path, _ in ALL_NODES])
def test_every_field_is_explained(path: str, node: dict[str, Any]) -> None:
    described_by_owner = path.endswith("[]") or path.startswith(("spec.pacing.", "spec.coalescing."))
    assert described_by_owner or node.get("description"), "kubectl explain would show nothing"


def test_no_enum_value_reads_as_another_type_in_yaml() -> None:
    values = [value for _, node in ALL_NODES for value in node.get("enum", ())]
    assert values
    status_values = {"True", "False"}  # Kubernetes' own convention, written by programs only
    assert [v for v in values if yaml.safe_load(v) != v and v not in status_values] == []


def test_defaults_of_an_empty_object_are_those_of_the_types() -> None:
    def filled(schema: dict[str, Any], value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = {name: child["default"] for name, child in schema["properties"].items() if "default" in child} | value
        return {name: filled(schema["properties"][name], item) for name, item in given.items()}

    written = {"model": {"source": "hf://org/name"}}
    read = InferenceProfileSpec.model_validate(filled(SPEC, written))
    assert read == InferenceProfileSpec.model_validate(written)
    assert filled(SPEC, written)["pacing"] == {"mode": "Disabled", "interval": 4}
    assert filled(SPEC, written)["engine"]["replicas"] == 1, "GET .../scale fails where replicas have no value"


def test_subresources_short_name_and_columns() -> None:
    assert VERSION["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.engine.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert crd()["spec"]["names"]["shortNames"] == ["ifp"]
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Model", "Pacing", "Ready", "Revision", "Age"]


def test_a_rule_says_what_to_do_and_names_a_field_that_exists() -> None:
    for path, node in [("", ROOT), *ALL_NODES]:
        for rule in node.get("x-kubernetes-validations", ()):
            assert len(rule["message"]) > 20, path
            if "fieldPath" in rule:
                assert rule["fieldPath"].removeprefix(".") in node["properties"], (path, rule)


def test_every_rule_reached_the_schema() -> None:
    reached = sum(len(node.get("x-kubernetes-validations", ())) for _, node in [("", ROOT), *ALL_NODES])
    assert reached == sum(len(rules) for rules in RULES.values())


def test_owned_and_reserved_arguments_stand_in_the_rules() -> None:
    (owned, reserved) = SPEC["properties"]["engine"]["x-kubernetes-validations"][:2]
    assert all(f'"{flag}"' in owned["rule"] and f'"{flag}"' in owned["messageExpression"] for flag in OWNED)
    assert all(f'"{flag}"' in reserved["rule"] and f'"{flag}"' in reserved["messageExpression"] for flag in RESERVED)


def test_the_schema_hash_moves_with_the_schema() -> None:
    assert crd()["metadata"]["annotations"][SCHEMA_HASH_ANNOTATION] == schema_hash(ROOT)
    changed = {**ROOT, "description": "another"}
    assert schema_hash(changed) != schema_hash(ROOT)
    assert re.fullmatch(r"[0-9a-f]{16}", schema_hash(ROOT))


def test_a_union_is_refused() -> None:
    class Union(BaseModel):
        either: int | str

    with pytest.raises(ValueError, match="union"):
        structural_schema(Union, {})


@pytest.mark.parametrize(("given", "kept"), [(2, "2"), ("500m", "500m"), ("1.5Gi", "1.5Gi")])
def test_a_quantity_may_be_a_number_as_kubernetes_takes_it(given: object, kept: str) -> None:
    spec = {"model": {"source": "hf://org/name"}, "engine": {"resources": {"limits": {"cpu": given}}}}
    profile = InferenceProfile.model_validate({"metadata": {"name": "x"}, "spec": spec})
    assert profile.spec.engine.resources.limits == {"cpu": kept}


@pytest.mark.parametrize("given", [True, 0.5, "-1", "1 Gi"])
def test_what_is_no_quantity_is_refused(given: object) -> None:
    spec = {"model": {"source": "hf://org/name"}, "engine": {"resources": {"limits": {"cpu": given}}}}
    with pytest.raises(ValidationError):
        InferenceProfile.model_validate({"metadata": {"name": "x"}, "spec": spec})
