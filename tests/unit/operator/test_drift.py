"""A live object holds what was applied, whatever else it holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.operator.drift import differences

TABLE: list[Any] = [
    ({"a": 1}, {"a": 1, "b": 2}, []),
    ({"a": 1}, {"a": 2}, ["a"]),
    ({"a": {"b": 1}}, {}, ["a"]),
    ({"emptyDir": {}}, {}, []),
    ({"a": [1, 2]}, {"a": [1, 2, 3]}, ["a"]),
    ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1]"]),
    ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, []),
    ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}, ["env[A].value"]),
    ({"env": [{"name": "A", "value": "1"}]}, {"env": []}, ["env[A]"]),
    ({"cpu": "1000m"}, {"cpu": "1"}, []),
    ({"memory": "1.5Gi"}, {"memory": "1536Mi"}, []),
    ({"memory": "1Gi"}, {"memory": "1G"}, ["memory"]),
    ({"command": ["a", "b"]}, {"command": ["a"]}, ["command"]),
    ({"name": "web"}, {"name": "web2"}, ["name"]),
]


@pytest.mark.parametrize(("wanted", "live", "found"), TABLE)
def test_what_differs(wanted: Any, live: Any, found: list[str]) -> None:
    assert list(differences(wanted, live)) == found


values = st.recursive(
    st.integers() | st.text(max_size=4) | st.booleans(),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_an_object_holds_itself(value: Any) -> None:
    assert list(differences(value, value)) == []


@given(st.dictionaries(st.sampled_from("abcd"), values), st.dictionaries(st.sampled_from("efgh"), values))
def test_more_fields_are_no_difference(wanted: dict[str, Any], more: dict[str, Any]) -> None:
    assert list(differences(wanted, {**more, **wanted})) == []


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(), min_size=1), st.data())
def test_a_changed_leaf_is_found(wanted: dict[str, int], data: Any) -> None:
    key = data.draw(st.sampled_from(sorted(wanted)))
    assert list(differences(wanted, {**wanted, key: wanted[key] + 1})) == [key]
