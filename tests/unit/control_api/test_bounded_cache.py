"""Answers are remembered for a moment, and not more of them than there is room for."""

from paceline.control_api.bounded_cache import BoundedCache


class Asked:
    """Counts how often it was asked; the answer is that number."""

    def __init__(self) -> None:
        self.times = 0
        self.now = 100.0

    async def answer(self) -> int:
        self.times += 1
        return self.times


async def test_an_answer_holds_until_its_time_is_over() -> None:
    asked = Asked()
    cache: BoundedCache[str, int] = BoundedCache(size=2, seconds=5, clock=lambda: asked.now)
    assert [await cache.get("a", asked.answer) for _ in range(3)] == [1, 1, 1]
    asked.now += 4.9
    assert await cache.get("a", asked.answer) == 1
    asked.now += 0.1
    assert await cache.get("a", asked.answer) == 2


async def test_the_one_that_was_used_longest_ago_makes_room() -> None:
    asked = Asked()
    cache: BoundedCache[str, int] = BoundedCache(size=2, seconds=5, clock=lambda: asked.now)
    for key in ("a", "b", "a", "c"):
        await cache.get(key, asked.answer)
    assert await cache.get("a", asked.answer) == 1
    assert await cache.get("b", asked.answer) == 4
