"""Names and labels of what is made for a profile."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from paceline.operator.api.v1alpha1 import GROUP

MAX_BASE_LENGTH: Final = 46
"""Longest base name in characters: with a suffix and the pod's own 16 characters it still is a host name of 63."""

PROFILE_LABEL: Final = f"{GROUP}/profile"
ROLE_LABEL: Final = f"{GROUP}/role"
TEMPLATE_LABEL: Final = f"{GROUP}/template"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "paceline"}
ENGINE_NAME: Final = {"app.kubernetes.io/name": "paceline-engine"}

_DNS_1035_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def base_name(profile: str) -> str:
    """Return the name of a profile's Service and workload: its own where that is a host name, else one close to it.

    Names with dots, leading digits or more than 46 characters are legal for profiles, not for Services; those get a
    hash of the whole name, so that two profiles never share one.
    """
    if len(profile) <= MAX_BASE_LENGTH and _DNS_1035_LABEL.fullmatch(profile):
        return profile
    digest = hashlib.sha256(profile.encode()).hexdigest()[:8]
    readable = profile.replace(".", "-")
    readable = readable if readable[0].isalpha() else f"p-{readable}"
    return f"{readable[: MAX_BASE_LENGTH - 9].rstrip('-')}-{digest}"


def selector_labels(profile: str) -> dict[str, str]:
    """Return the labels by which the profile's engine pods are found."""
    return {**ENGINE_NAME, PROFILE_LABEL: profile}


def object_labels(profile: str) -> dict[str, str]:
    """Return the labels of every object that is made for a profile."""
    return {**selector_labels(profile), **MANAGED_BY}


def selector_text(labels: Mapping[str, str]) -> str:
    """Return a label selector as text, as the scale subresource and the API server's lists take it."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
