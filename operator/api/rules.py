"""The CEL rules of the CRD: what crosses fields, checked by the API server itself, each with what to do instead.

The rules about arguments and variables are generated from the operator's own tables, so that they can't differ.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from paceline.operator.api.v1alpha1 import MAX_NAME_LENGTH
from paceline.operator.specs.engine_args import OWNED, RESERVED, RESERVED_ENV

Rule = Mapping[str, str]


def _rule(rule: str, message: str, field: str = "") -> Rule:
    place = {"fieldPath": field} if field else {}
    return {"rule": rule, "message": message, **place}


def _cel_map(table: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()) + "}"


# The flag that an argument names: without its value, and dashed, since argparse takes --max_model_len as well.
_FLAG: Final = "a.split('=', 2)[0].replace('_', '-')"


def _refused_arguments(table: Mapping[str, str], message: str, hint: str) -> Rule:
    names = json.dumps(list(table))
    return {
        "rule": f"!has(self.extraArgs) || self.extraArgs.all(a, !({_FLAG} in {names}))",
        "message": hint,
        "messageExpression": f"self.extraArgs.filter(a, {_FLAG} in {names}).map(a, {_FLAG}).map(f, {message})[0]",
        "fieldPath": ".extraArgs",
    }


_ENGINE: Final[Sequence[Rule]] = (
    _refused_arguments(
        OWNED,
        f"f + ' is set by ' + {_cel_map(OWNED)}[f] + '; use that field instead'",
        "an argument is set by a field of the profile; use that field instead",
    ),
    _refused_arguments(
        RESERVED,
        f"f + ' is not allowed: ' + {_cel_map(RESERVED)}[f]",
        "an argument is Paceline's own and not allowed",
    ),
    {
        "rule": f"!has(self.env) || self.env.all(e, !(e.name in {json.dumps(list(RESERVED_ENV))}))",
        "message": "a variable is set by a field of the profile or by Paceline",
        "messageExpression": f"self.env.map(e, e.name).filter(n, n in {json.dumps(list(RESERVED_ENV))})"
        f".map(n, n + ' is not allowed: ' + {_cel_map(RESERVED_ENV)}[n])[0]",
        "fieldPath": ".env",
    },
    _rule(
        "!has(self.env) || self.env.all(e, !e.name.startsWith('PACELINE_'))",
        "variables that start with PACELINE_ are Paceline's own; rename yours",
        ".env",
    ),
    _rule(
        "self.accelerator == 'CPU' || !has(self.kvCache.sizeGibibytes)",
        "sizeGibibytes sizes the cache of a CPU engine; on NVIDIA set memoryUtilizationPercent",
        ".kvCache",
    ),
    _rule(
        "self.accelerator != 'CPU' || !has(self.kvCache.memoryUtilizationPercent)",
        "memoryUtilizationPercent sizes the cache of a GPU engine; on CPU set sizeGibibytes",
        ".kvCache",
    ),
    _rule(
        "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs) || self.maxNumBatchedTokens >= self.maxNumSeqs",
        "maxNumBatchedTokens must be at least maxNumSeqs: every running request needs a token of the step",
        ".maxNumBatchedTokens",
    ),
    _rule(
        "!has(self.speculative) || !has(self.maxNumBatchedTokens) || "
        "self.maxNumBatchedTokens > self.speculative.draftTokens + 1",
        "maxNumBatchedTokens must exceed draftTokens + 1, the tokens of one verified draft",
        ".maxNumBatchedTokens",
    ),
)

_MODEL: Final[Sequence[Rule]] = (
    _rule(
        "!has(self.tokenSecretRef) || self.source.startsWith('hf://')",
        "tokenSecretRef is a Hugging Face token and needs a source of hf://org/name; remove it for this source",
        ".tokenSecretRef",
    ),
    _rule(
        "self.source.startsWith('hf://') || !(self.source + '/').contains('/../')",
        "the path may not leave its volume: remove the .. from it",
        ".source",
    ),
)

RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "PacingSettings": (
        _rule(
            "self.mode != 'SLO' || has(self.slo)",
            "mode SLO needs the field slo, at least slo.timePerOutputTokenMilliseconds",
        ),
    ),
    "ModelSpec": _MODEL,
    "EngineSpec": _ENGINE,
    "ParallelismSpec": (
        _rule(
            "(self.tensor * self.pipeline * self.data) % self.nodes == 0",
            "nodes must divide tensor * pipeline * data: every node of a replica holds the same number of devices",
            ".nodes",
        ),
    ),
    "SpeculativeSpec": (
        _rule(
            "!(self.method in ['ngram', 'ngram_gpu', 'suffix']) || !has(self.draftModel)",
            "methods ngram, ngram_gpu and suffix draft from the prompt and take no draftModel; remove it",
            ".draftModel",
        ),
        _rule(
            "!(self.method in ['draft_model', 'eagle', 'eagle3', 'medusa', 'mlp_speculator']) || has(self.draftModel)",
            "this method needs the field draftModel: the name or path of the draft model",
            ".method",
        ),
    ),
    "ResourcesSpec": (
        _rule(
            "!has(self.limits) || !has(self.requests) || self.requests.all(r, !(r in self.limits) || "
            "quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",
            "a request exceeds its limit; raise the limit or lower the request",
            ".requests",
        ),
    ),
    "Toleration": (
        _rule(
            "!has(self.value) || self.operator == 'Equal'",
            "operator Exists takes no value; remove the value or use operator Equal",
            ".value",
        ),
        _rule(
            "has(self.key) || self.operator == 'Exists'",
            "operator Equal needs a key; name one, or use operator Exists to tolerate every taint",
            ".operator",
        ),
        _rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds holds for effect NoExecute only",
            ".tolerationSeconds",
        ),
    ),
    "RolloutSpec": (
        _rule(
            "self.strategy != 'RollingUpdate' || self.maxSurge + self.maxUnavailable > 0",
            "maxSurge and maxUnavailable are both 0, so no engine could ever be replaced; raise one of them",
            ".maxSurge",
        ),
    ),
    "InferenceProfile": (
        _rule(
            f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            f"metadata.name may have {MAX_NAME_LENGTH} characters at most, since it labels the engine's pods",
        ),
    ),
}
"""The validations of each type, by the name of its class."""
