"""The one cadence of an engine: how many steps must pass from one paced mixed step to the next."""

from dataclasses import dataclass


@dataclass(slots=True)
class Cadence:
    """Counts the steps that computed something, and remembers the last paced mixed one.

    A step is mixed when a decoder existed and prefill tokens were scheduled; steps without work don't count. The
    cadence belongs to the engine, not to a request, so several staggered prefills can't add up to more mixed steps.
    """

    step: int = 0
    last_mixed: int | None = None

    def allows(self, gap_steps: int) -> bool:
        """Tell whether the next step may be mixed when mixed steps lie at least `gap_steps` apart."""
        return self.last_mixed is None or self.step + 1 - self.last_mixed >= gap_steps

    def advance(self, *, mixed: bool) -> None:
        """Count a step that computed tokens; `mixed` when prefills that pacing may hold ran beside a decoder."""
        self.step += 1
        if mixed:
            self.last_mixed = self.step
