"""The definition on a real API server: what it refuses, with which words, and what it fills in, prunes and scales."""

from typing import Any

import pytest
from oplab import Api, RefusedError
from oplab.api import profile_manifest

from paceline.operator.kube.resources import PROFILES
from testbed import ApiServer

HF = {"source": "hf://org/name"}
CPU = {"accelerator": "CPU"}


def engine(**fields: Any) -> dict[str, Any]:
    return {"model": HF, "engine": {**CPU, **fields}}


INVALID = [
    ("slo without promise", {"model": HF, "pacing": {"mode": "SLO"}}, "mode SLO needs the field slo"),
    (
        "negative interval",
        {"model": HF, "pacing": {"mode": "Fixed", "interval": -1}},
        "should be greater than or equal to 0",
    ),
    ("huge interval", {"model": HF, "pacing": {"interval": 10**9}}, "should be less than or equal to 1024"),
    ("interval as text", {"model": HF, "pacing": {"interval": "4"}}, "must be of type integer"),
    ("interval as fraction", {"model": HF, "pacing": {"interval": 1.5}}, "must be of type integer"),
    ("mode as boolean", {"model": HF, "pacing": {"mode": False}}, "must be of type string"),
    ("unknown mode", {"model": HF, "pacing": {"mode": "Off"}}, 'supported values: "Disabled", "Fixed", "SLO"'),
    (
        "promise of 0 ms",
        {"model": HF, "pacing": {"mode": "SLO", "slo": {"timePerOutputTokenMilliseconds": 0}}},
        "should be greater than or equal to 1",
    ),
    ("no model", {"engine": CPU}, "spec.model: Required value"),
    ("no source", {"model": {}}, "spec.model.source: Required value"),
    ("source of an unknown kind", {"model": {"source": "s3://bucket/model"}}, "should match"),
    ("source without a path", {"model": {"source": "pvc://claim"}}, "should match"),
    ("source that leaves its volume", {"model": {"source": "pvc://claim/../etc"}}, "may not leave its volume"),
    (
        "token for a volume",
        {"model": {"source": "pvc://claim/model", "tokenSecretRef": {"name": "hf"}}},
        "needs a source of hf://org/name",
    ),
    (
        "owned argument",
        engine(extraArgs=["--max-model-len", "10"]),
        "--max-model-len is set by spec.model.maxModelLen; use",
    ),
    (
        "owned argument with value",
        engine(extraArgs=["--dtype=half"]),
        "--dtype is set by spec.model.dtype; use that field",
    ),
    (
        "owned argument, underscores",
        engine(extraArgs=["--max_num_seqs=4"]),
        "--max-num-seqs is set by spec.engine.maxNumSeqs",
    ),
    ("owned short argument", engine(extraArgs=["-tp", "2"]), "-tp is set by spec.engine.parallelism.tensor"),
    ("port", engine(extraArgs=["--port", "9"]), "--port is not allowed: Paceline chooses the engine's port"),
    (
        "scheduler",
        engine(extraArgs=["--scheduler-cls", "x"]),
        "--scheduler-cls is not allowed: Paceline's own scheduler",
    ),
    (
        "partial prefills",
        engine(extraArgs=["--max-num-partial-prefills", "4"]),
        "--max-num-partial-prefills is not allowed: vLLM's scheduler refuses to start with it",
    ),
    (
        "reserved variable",
        engine(env=[{"name": "VLLM_PLUGINS", "value": "x"}]),
        "VLLM_PLUGINS is not allowed: Paceline lists",
    ),
    (
        "variable of ours",
        engine(env=[{"name": "PACELINE_X"}]),
        "variables that start with PACELINE_ are Paceline's own",
    ),
    ("variable twice", engine(env=[{"name": "A"}, {"name": "A"}]), "Duplicate value"),
    ("variable with a dash", engine(env=[{"name": "A-B"}]), "should match"),
    (
        "GPU cache on CPU",
        engine(kvCache={"memoryUtilizationPercent": 90}),
        "memoryUtilizationPercent sizes the cache of a GPU engine; on CPU set sizeGibibytes",
    ),
    (
        "CPU cache on GPU",
        {"model": HF, "engine": {"accelerator": "NVIDIA", "kvCache": {"sizeGibibytes": 4}}},
        "sizeGibibytes sizes the cache of a CPU engine; on NVIDIA set memoryUtilizationPercent",
    ),
    ("block of 100 tokens", engine(kvCache={"blockSizeTokens": 100}), "should be a multiple of 16"),
    (
        "budget below the batch",
        engine(maxNumBatchedTokens=16, maxNumSeqs=32),
        "maxNumBatchedTokens must be at least maxNumSeqs",
    ),
    (
        "budget below the draft",
        engine(maxNumBatchedTokens=16, speculative={"method": "ngram", "draftTokens": 16}),
        "maxNumBatchedTokens must exceed draftTokens + 1",
    ),
    (
        "draft model for ngram",
        engine(speculative={"method": "ngram", "draftTokens": 3, "draftModel": "x"}),
        "take no draftModel; remove it",
    ),
    (
        "eagle without draft model",
        engine(speculative={"method": "eagle3", "draftTokens": 3}),
        "this method needs the field draftModel",
    ),
    (
        "nodes that don't divide",
        engine(parallelism={"tensor": 2, "nodes": 3}),
        "nodes must divide tensor * pipeline * data",
    ),
    (
        "request above limit",
        engine(resources={"requests": {"memory": "4Gi"}, "limits": {"memory": "2Gi"}}),
        "a request exceeds its limit; raise the limit or lower the request",
    ),
    ("quantity as fraction", engine(resources={"limits": {"cpu": 0.5}}), "must be of type integer"),
    ("taint without key", engine(tolerations=[{"effect": "NoSchedule"}]), "operator Equal needs a key; name one"),
    (
        "taint with needless value",
        engine(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "operator Exists takes no value",
    ),
    (
        "rollout that can't go on",
        {"model": HF, "rollout": {"strategy": "RollingUpdate", "maxSurge": 0}},
        "maxSurge and maxUnavailable are both 0, so no engine could ever be replaced",
    ),
    ("too many replicas", engine(replicas=1000), "should be less than or equal to 256"),
    ("too many arguments", engine(extraArgs=["x"] * 65), "must have at most 64 items"),
]


def test_there_are_thirty_invalid_profiles_at_least() -> None:
    assert len(INVALID) >= 30


@pytest.mark.parametrize(("spec", "message"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
def test_the_api_server_itself_refuses(admin: Api, space: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        admin.profile(space, "web", spec)
    assert refused.value.status == 422
    assert message in refused.value.message


@pytest.mark.parametrize("name", ["qwen3.5-27b", "3b", "a" * 63])
def test_odd_names_are_taken(admin: Api, space: str, name: str) -> None:
    assert admin.profile(space, name, engine())["metadata"]["name"] == name


def test_a_name_that_no_label_can_hold_is_refused(admin: Api, space: str) -> None:
    with pytest.raises(RefusedError, match="may have 63 characters at most"):
        admin.profile(space, "a" * 64, engine())


def test_what_is_legal_and_odd_is_taken(admin: Api, space: str) -> None:
    spec = engine(
        extraArgs=["--override-generation-config", '{"method": "ngram", "k": 3}', "$(HOME)", "--seed=1", "-1"],
        env=[{"name": "A", "value": "$(B)"}],
        resources={
            "requests": {"cpu": 2, "memory": "1Gi"},
            "limits": {"nvidia.com/mig-3g.40gb": 1, "memory": "2048Mi"},
        },
    )
    assert admin.profile(space, "odd", spec)["spec"]["engine"]["extraArgs"] == spec["engine"]["extraArgs"]


def test_the_worst_legal_lists_cost_the_rules_little_enough(admin: Api, space: str) -> None:
    spec = engine(
        extraArgs=[f"--a{'=' * 8000}{index}" for index in range(64)],
        env=[{"name": f"A{index}", "value": "x" * 1_000} for index in range(64)],
        resources={kind: {f"example.com/r{index}": "1" for index in range(16)} for kind in ("requests", "limits")},
    )
    assert admin.profile(space, "large", spec)["metadata"]["generation"] == 1


def test_defaults_are_filled_in_and_unknown_fields_pruned_with_a_warning(
    bare_server: ApiServer, admin: Api, space: str
) -> None:
    made = admin.profile(space, "web", {"model": HF, "pacing": {"intreval": 8}})
    assert made["spec"]["pacing"] == {"mode": "Disabled", "interval": 4}
    assert made["spec"]["engine"]["replicas"] == 1
    assert made["spec"]["coalescing"] == {"finalChunk": "Disabled", "maxSpanTokens": 8192, "admission": "SinglePrefill"}
    text = '{"apiVersion":"paceline.dev/v1alpha1","kind":"InferenceProfile","metadata":{"name":"strict"},"spec":{"model":{"source":"hf://a/b"},"turbo":1}}'
    answer = bare_server.kubectl("create", "-n", space, "--validate=warn", "-f", "-", stdin=text)
    assert 'unknown field "spec.turbo"' in answer.stderr
    refused = bare_server.kubectl("create", "-n", space, "-f", "-", stdin=text.replace("strict", "other"), check=False)
    assert refused.status == 1
    assert 'unknown field "spec.turbo"' in refused.stderr


def test_scale_has_a_string_selector_and_survives_an_apply_without_replicas(
    bare_server: ApiServer, admin: Api, space: str
) -> None:
    text = f'{{"apiVersion":"paceline.dev/v1alpha1","kind":"InferenceProfile","metadata":{{"name":"web","namespace":"{space}"}},"spec":{{"model":{{"source":"hf://a/b"}}}}}}'
    bare_server.kubectl("apply", "-f", "-", stdin=text)
    admin.merge(PROFILES, space, "web", {"status": {"selector": "a=b", "replicas": 1}}, "status")
    scale = admin.call("GET", PROFILES.path(space, "web", "scale"))
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 1, "selector": "a=b"})
    bare_server.kubectl("scale", "ifp/web", "--replicas=3", "-n", space)
    bare_server.kubectl("apply", "-f", "-", stdin=text)
    assert admin.get(PROFILES, space, "web")["spec"]["engine"]["replicas"] == 3
    admin.apply(profile_manifest(space, "web", {"model": {"source": "hf://a/b"}}), manager="gitops", force=True)
    assert admin.get(PROFILES, space, "web")["spec"]["engine"]["replicas"] == 3


def test_a_table_shows_what_a_user_looks_for(bare_server: ApiServer, admin: Api, space: str) -> None:
    admin.profile(space, "web", {"model": HF, "pacing": {"mode": "Fixed"}})
    condition = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"pacing": "Fixed/4", "revision": 7, "conditions": [condition]}
    admin.merge(PROFILES, space, "web", {"status": status}, "status")
    header, row = bare_server.kubectl("get", "ifp", "-n", space).stdout.splitlines()
    assert header.split() == ["NAME", "MODEL", "PACING", "READY", "REVISION", "AGE"]
    assert row.split()[:5] == ["web", "hf://org/name", "Fixed/4", "True", "7"]


def test_an_explanation_of_every_field_is_at_hand(bare_server: ApiServer, admin: Api) -> None:
    answer = bare_server.kubectl("explain", "ifp.spec.engine.extraArgs").stdout
    assert "More arguments of vLLM's server" in answer


def test_a_profile_may_be_dry_run(admin: Api, space: str) -> None:
    admin.create(profile_manifest(space, "web", {"model": HF}), dryRun="All")
    assert admin.find(PROFILES, space, "web") is None
