"""Whether a live object still holds everything that was applied. Pure.

The API server adds defaults and other writers add fields of their own, so live objects are never equal to built ones:
they hold them.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

_LIST_KEYS: Final = ("name", "mountPath", "containerPort", "port", "key", "type", "uid")
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_UNITS: Final = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def differences(wanted: Any, live: Any, path: str = "") -> Iterator[str]:
    """Yield the path of everything in `wanted` that `live` lacks or holds otherwise; what only `live` has is fine."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for name, value in wanted.items():
            yield from differences(value, live.get(name), f"{path}.{name}" if path else name)
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list_differences(wanted, live, path)
    elif not _same(wanted, live):
        yield path


def _list_differences(wanted: list[Any], live: list[Any], path: str) -> Iterator[str]:
    key = next((key for key in _LIST_KEYS if wanted and all(isinstance(i, dict) and key in i for i in wanted)), None)
    if key is None:
        if len(wanted) != len(live):
            yield path
            return
        for index, (item, other) in enumerate(zip(wanted, live, strict=True)):
            yield from differences(item, other, f"{path}[{index}]")
        return
    by_key = {item.get(key): item for item in live if isinstance(item, dict)}
    for item in wanted:
        yield from differences(item, by_key.get(item[key]), f"{path}[{item[key]}]")


def _same(wanted: Any, live: Any) -> bool:
    if wanted == live:
        return True
    # An empty struct is dropped or filled by the API server.
    if live is None:
        return wanted in ({}, [], "", None)
    if not isinstance(wanted, str) or not isinstance(live, str):
        return False
    amount = _amount(wanted)
    return amount is not None and amount == _amount(live)


def _amount(text: str) -> Decimal | None:
    """Return a Kubernetes quantity as a number: the API server rewrites 1000m as 1."""
    found = _QUANTITY.fullmatch(text)
    return Decimal(found[1]) * _UNITS.get(found[2], Decimal(1)) if found else None
