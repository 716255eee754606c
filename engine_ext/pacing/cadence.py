"""The one cadence of an engine: how many steps must pass from one paced mixed step to the next."""

from dataclasses import dataclass


@dataclass(slots=True)
class Cadence:
    """Remembers the last paced mixed step, by its number among the steps that computed something.

    A step is mixed when a decoder existed and prefill tokens were scheduled; steps without work don't count. The
    cadence belongs to the engine, not to a request, so several staggered prefills can't add up to more mixed steps.
    """

    last_mixed: int | None = None

    def allows(self, step: int, gap_steps: int) -> bool:
        """Tell whether step `step` may be mixed when mixed steps lie at least `gap_steps` apart."""
        return self.last_mixed is None or step - self.last_mixed >= gap_steps
