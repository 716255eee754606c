"""Images in a prompt: their encoder runs whole, and where vLLM may not split them a chunk ends before them."""

from copy import copy
from itertools import pairwise

import pytest
from harness import BUDGET, Driver, Options, fixed
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

ENCODER_TOKENS = 1_000
"""What the encoder may compute in a step and what its cache holds, in the test's engine."""


def with_images(driver: Driver, *, split: bool) -> Driver:
    """Let the driver's engine take images; `split` tells whether one may lie in two chunks."""
    scheduler = driver.scheduler
    scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=ENCODER_TOKENS)
    scheduler.scheduler_config = copy(scheduler.scheduler_config)  # shared by every scheduler of the same options
    scheduler.scheduler_config.disable_chunked_mm_input = not split
    return driver


def image(name: str, offset: int, tokens: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=offset, length=tokens)
    )


@pytest.mark.parametrize(
    ("split", "interval", "chunks", "steps"),
    [
        # Beside one decoder a step has 63 tokens for the prompt: the first would cut the image from 40 to 90.
        (False, 4, [40, 63, 63, 34], [3, 7, 11, 15]),
        (False, 0, [40, 63, 63, 34], [3, 4, 5, 6]),
        (True, 4, [63, 63, 63, 11], [3, 7, 11, 15]),
    ],
)
def test_image_in_a_paced_prompt(split: bool, interval: int, chunks: list[int], steps: list[int]) -> None:
    driver = with_images(Driver(Options(), fixed(interval)), split=split)
    driver.add("resident", 10)
    driver.step(2)
    driver.add("newcomer", 200, 4, images=[image("cat", 40, 50)])
    driver.step(steps[-1] + 6)
    assert driver.chunks("newcomer") == chunks
    assert driver.chunk_steps("newcomer") == steps
    driver.assert_whole("newcomer")


def test_image_that_fills_a_step_takes_its_turn_beside_a_long_text() -> None:
    driver = with_images(Driver(Options(), fixed(4)), split=False)
    driver.add("resident", 10)
    driver.step(2)
    driver.add("text", 10 * BUDGET, 2)
    driver.step()
    driver.add("picture", 70, 2, images=[image("dog", 0, BUDGET - 1)])
    driver.step(80)
    assert driver.chunks("picture") == [63, 7]
    # The text has waited since its chunk in step 3, longer than the picture; then they alternate, and what the
    # picture's end leaves of its step goes to the text.
    assert driver.chunk_steps("picture") == [11, 19]
    assert driver.chunk_steps("text")[:5] == [3, 7, 15, 19, 23]
    assert sum(driver.chunks("text")) == 10 * BUDGET
    for name in ("picture", "text"):
        driver.assert_whole(name)
    mixed = [number for number, step in enumerate(driver.steps, 1) if step.is_mixed]
    assert all(later - earlier >= 4 for earlier, later in pairwise(mixed))
