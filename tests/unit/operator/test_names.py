"""Names of what is made for a profile: always legal, always its own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.operator.api.v1alpha1 import DNS_SUBDOMAIN_PATTERN, MAX_NAME_LENGTH
from paceline.operator.specs.names import MAX_BASE_LENGTH, base_name, object_labels, selector_text

SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
names = st.from_regex(DNS_SUBDOMAIN_PATTERN, fullmatch=True).filter(lambda name: len(name) <= MAX_NAME_LENGTH)


@pytest.mark.parametrize(
    ("profile", "base"),
    [
        ("web", "web"),
        ("a" * 46, "a" * 46),
        # The suffix is the beginning of the name's SHA-256.
        ("qwen3.5-27b", "qwen3-5-27b-a1d62004"),
        ("3b", "p-3b-537b597b"),
        ("a" * 63, "a" * 37 + "-7d3e74a0"),
    ],
)
def test_a_name_is_kept_or_made_like_itself(profile: str, base: str) -> None:
    assert base_name(profile) == base


@given(names)
def test_every_legal_profile_gets_a_legal_service_and_label(profile: str) -> None:
    base = base_name(profile)
    assert SERVICE_NAME.fullmatch(base)
    assert len(base) <= MAX_BASE_LENGTH
    assert all(LABEL_VALUE.fullmatch(value) and len(value) <= 63 for value in object_labels(profile).values())


@given(names, names)
def test_two_profiles_never_share_a_name(first: str, second: str) -> None:
    assert (base_name(first) == base_name(second)) == (first == second)


def test_a_selector_is_text_in_one_order() -> None:
    assert selector_text({"b": "2", "a": "1"}) == "a=1,b=2"
