"""Whether two runs of one prompt gave the same output: token by token, and by the tokens' logprobs.

Under greedy decoding two correct engines may part where two tokens are all but equally likely. There each picked its
own best token, so their logprobs lie within the tolerance of each other; where they don't, a state was wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.bench.records import RequestRecord


@dataclass(frozen=True)
class OutputComparison:
    """How far two outputs were compared, and how they differ.

    `parted` counts pairs whose tokens differ from some position on, at a near tie; `wrong` those that differ by more
    than the tolerance. The largest logprob difference is over equal tokens and the first differing one.
    """

    pairs: int = 0
    tokens: int = 0
    max_logprob_difference: float = 0.0
    parted: int = 0
    wrong: int = 0

    def __add__(self, other: "OutputComparison") -> "OutputComparison":
        return OutputComparison(
            self.pairs + other.pairs,
            self.tokens + other.tokens,
            max(self.max_logprob_difference, other.max_logprob_difference),
            self.parted + other.parted,
            self.wrong + other.wrong,
        )

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return self.wrong == 0

    def summary(self) -> str:
        """Say it in words."""
        parted = f"; {self.parted} parted at a near tie" if self.parted else ""
        return (
            f"{self.tokens} tokens of {self.pairs} pairs of outputs, largest logprob difference "
            f"{self.max_logprob_difference:.2g}{parted}"
        )


def compare_outputs(one: RequestRecord, other: RequestRecord, tolerance: float) -> OutputComparison:
    """Compare two outputs of one prompt over their common length, up to the first token that differs."""
    compared, largest, parted, unexplained = 0, 0.0, False, False
    pairs = zip(
        zip(one.output_token_ids, one.output_logprobs, strict=False),
        zip(other.output_token_ids, other.output_logprobs, strict=False),
        strict=False,
    )
    for (token, logprob), (other_token, other_logprob) in pairs:
        compared += 1
        parted = token != other_token
        if logprob is not None and other_logprob is not None:
            largest = max(largest, abs(logprob - other_logprob))
        else:
            unexplained = unexplained or parted
        if parted:
            break
    wrong = largest > tolerance or unexplained
    return OutputComparison(1, compared, largest, int(parted and not wrong), int(wrong))


def compare_arms(one: Iterable[RequestRecord], other: Iterable[RequestRecord], tolerance: float) -> OutputComparison:
    """Compare every request of one arm with the other arm's of the same block, role and index."""
    partners = {(record.block, record.role, record.index): record for record in other}
    total = OutputComparison()
    for record in one:
        partner = partners.get((record.block, record.role, record.index))
        if partner is not None:
            total += compare_outputs(record, partner, tolerance)
    return total
