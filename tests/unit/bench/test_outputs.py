import pytest

from paceline.bench.outputs import OutputComparison, compare_arms, compare_outputs
from paceline.bench.records import RequestRecord, RequestState, Role

Tokens = list[tuple[int, float | None]]


def output(*tokens: tuple[int, float | None], block: int = 0, role: Role = Role.INJECTED) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        role=role,
        arm="a",
        block=block,
        state=RequestState.FINISHED,
        prompt_tokens=1,
        max_tokens=8,
        intended_seconds=0.0,
        finished_seconds=1.0,
        output_token_ids=tuple(token for token, _ in tokens),
        output_logprobs=tuple(logprob for _, logprob in tokens),
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([(1, -1.0), (2, -2.0)], [(1, -1.0), (2, -2.0)], OutputComparison(1, 2, 0.0, 0, 0)),
        # Only the common length is compared.
        ([(1, -1.0), (2, -2.0)], [(1, -1.0)], OutputComparison(1, 1, 0.0, 0, 0)),
        ([(1, -1.0)], [(1, -1.25)], OutputComparison(1, 1, 0.25, 0, 1)),
        ([(1, -1.0)], [(1, -1.0078125)], OutputComparison(1, 1, 0.0078125, 0, 0)),
        # A near tie: each took its own best token, all but equally likely. What follows is another text.
        (
            [(1, -0.5), (2, -1.0), (3, -9.0)],
            [(1, -0.5), (7, -1.0078125), (3, -1.0)],
            OutputComparison(1, 2, 0.0078125, 1, 0),
        ),
        # Another token, and far from a tie: a state was wrong.
        ([(1, -0.5), (2, -1.0)], [(1, -0.5), (7, -0.5)], OutputComparison(1, 2, 0.5, 0, 1)),
        # Without logprobs a difference can't be explained.
        ([(1, None)], [(2, None)], OutputComparison(1, 1, 0.0, 0, 1)),
        ([(1, None)], [(1, None)], OutputComparison(1, 1, 0.0, 0, 0)),
        ([], [(1, -1.0)], OutputComparison(1, 0, 0.0, 0, 0)),
    ],
)
def test_two_outputs(one: Tokens, other: Tokens, expected: OutputComparison) -> None:
    assert compare_outputs(output(*one), output(*other), 0.02) == expected
    assert compare_outputs(output(*other), output(*one), 0.02) == expected


def test_a_state_that_was_corrupted_half_way_is_found() -> None:
    right = [(token, -1.0) for token in range(50)]
    wrong = right[:30] + [(token, -1.5) for token, _ in right[30:]]
    assert not compare_outputs(output(*right), output(*wrong), 0.02).equal


def test_arms_are_compared_prompt_by_prompt() -> None:
    one = [output((1, -1.0), block=0), output((2, -1.0), block=1), output((3, -1.0), role=Role.RESIDENT)]
    other = [output((2, -1.0), block=1), output((1, -1.0), block=0), output((9, -5.0), block=7)]
    found = compare_arms(one, other, 0.02)
    assert found == OutputComparison(2, 2, 0.0, 0, 0)
    assert found.summary() == "2 tokens of 2 pairs of outputs, largest logprob difference 0"
