"""Prompts as token ids: exact lengths, drawn by seed, never twice the same in a run.

The ids come from the engine's own tokenizer, so that any model takes them: ordinary text's tokens, no special ones.
"""

import random
from collections.abc import Sequence
from typing import Final

SAMPLE_TEXT: Final = (
    "The quick brown fox jumps over the lazy dog while seventeen engineers measure how long a prompt of many tokens "
    "keeps everybody else waiting, and write 0123456789 figures down: first before, then during, and finally after."
)
"""Text whose tokens are the vocabulary of every prompt."""


def prompt_pool(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the distinct ids that prompts are drawn from, sorted. Raises ValueError where there are too few."""
    pool = tuple(sorted(set(token_ids)))
    if len(pool) < 8:
        raise ValueError(f"the engine's tokenizer makes only {len(pool)} different tokens of a whole sentence")
    return pool


def make_prompt(pool: Sequence[int], length: int, *, seed: int, block: int, role: str, index: int) -> list[int]:
    """Draw a prompt of `length` tokens. The same arguments give the same prompt, in every arm and every run."""
    return random.Random(f"{seed}/{block}/{role}/{index}").choices(pool, k=length)
