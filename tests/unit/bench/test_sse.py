from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.sse import EventStreamDecoder

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12)


def decode(*pieces: bytes) -> list[str]:
    decoder = EventStreamDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]),
        (b"data: one\r\rdata: two\r\r:", ["one", "two"]),
        (b"data:no space\n\n", ["no space"]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": a comment\nevent: message\nid: 7\ndata: x\n\n", ["x"]),
        (b"event: ping\n\n", []),
        (b"data: cut short", []),
        (b"data: cut short\n", []),
        ("data: größe ☃\n\n".encode(), ["größe ☃"]),
    ],
)
def test_events_are_cut_as_the_standard_says(stream: bytes, events: list[str]) -> None:
    assert decode(stream) == events


@given(st.lists(TEXT, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_the_pieces_in_which_bytes_arrive_do_not_matter(texts: list[str], ending: str, data: st.DataObject) -> None:
    stream = "".join(f"data: {text}{ending}{ending}" for text in texts).encode() + b": end"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert decode(*pieces) == texts
