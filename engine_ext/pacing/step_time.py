"""An online model of how long an engine step takes, learned from the engine's own steps.

t = a + b * decoders + c * prefill tokens + d * prefill attention pairs, fitted by least squares over the newest steps
of either kind, with Huber weights so that a stray step (a compilation, a page fault) does not count for much. What is
stray is told within a kind: decode steps vary so little that beside them every prefill step would seem to be.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Final

import numpy as np

WINDOW_STEPS: Final = 64
"""How many steps of each kind the model remembers: old enough to average noise, new enough to follow a change."""
MIN_SAMPLES: Final = 3
"""How many steps of each kind the model wants before it answers."""
REFIT_DECODES: Final = 16
"""After how many further decode steps the model is fitted anew; after a prefill step it always is."""
HUBER_ROUNDS: Final = 3
HUBER_SCALE: Final = 1.5
RIDGE: Final = 1e-6
TOKENS_UNIT: Final = 1024
PAIRS_UNIT: Final = 1e7


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes.

    `prefill_pairs` is the number of query-key pairs of its prefill chunks: tokens * (context + tokens / 2) of each.
    """

    decoders: int
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0

    def features(self) -> tuple[float, float, float, float]:
        """Return the model's inputs, scaled to about one."""
        return 1.0, self.decoders / 16, self.prefill_tokens / TOKENS_UNIT, self.prefill_pairs / PAIRS_UNIT


@cache
def decode_load(decoders: int) -> StepLoad:
    """Return the load of a step that only decodes; cached, since every step asks and counts are few."""
    return StepLoad(decoders)


def chunk_load(decoders: int, chunk_tokens: int, context_tokens: int) -> StepLoad:
    """Return the load of a step with one prefill chunk that starts after `context_tokens`, beside `decoders`."""
    return StepLoad(decoders, chunk_tokens, chunk_tokens * (context_tokens + chunk_tokens / 2))


Sample = tuple[tuple[float, float, float, float], float]


@dataclass(slots=True)
class StepTimeModel:
    """Durations in seconds by load. `predict` is meaningful once `ready`."""

    decodes: deque[Sample] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    prefills: deque[Sample] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    coefficients: np.ndarray | None = None
    unfitted: int = 0

    @property
    def ready(self) -> bool:
        """Whether enough steps of both kinds were seen."""
        return len(self.decodes) >= MIN_SAMPLES and len(self.prefills) >= MIN_SAMPLES

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a finished step."""
        is_prefill = load.prefill_tokens > 0
        (self.prefills if is_prefill else self.decodes).append((load.features(), seconds))
        self.unfitted += REFIT_DECODES if is_prefill else 1

    def predict(self, load: StepLoad) -> float:
        """Return the expected duration of a step in seconds, never below zero."""
        return max(0.0, float(np.dot(load.features(), self._fitted())))

    def prefill_costs(self) -> tuple[float, float]:
        """Return the seconds that a prefill token and a query-key pair add to a step, neither below zero."""
        _, _, per_token, per_pair = self._fitted()
        return max(0.0, float(per_token) / TOKENS_UNIT), max(0.0, float(per_pair) / PAIRS_UNIT)

    def _fitted(self) -> np.ndarray:
        if self.coefficients is None or self.unfitted >= REFIT_DECODES:
            self.coefficients = _fit(self.decodes, self.prefills)
            self.unfitted = 0
        return self.coefficients


def _fit(*kinds: Collection[Sample]) -> np.ndarray:
    """Weighted ridge regression; weights shrink with a residual, in units of the typical one of the sample's kind."""
    samples = [sample for kind in kinds for sample in kind]
    edges = list(accumulate(map(len, kinds)))
    inputs = np.array([features for features, _ in samples])
    seconds = np.array([duration for _, duration in samples])
    weights = np.ones(len(seconds))
    coefficients = np.zeros(inputs.shape[1])
    for _ in range(HUBER_ROUNDS):
        weighted = inputs * weights[:, None]
        normal = weighted.T @ inputs + RIDGE * np.eye(inputs.shape[1])
        coefficients = np.linalg.solve(normal, weighted.T @ seconds)
        residuals = np.abs(seconds - inputs @ coefficients)
        weights = np.concatenate([_huber_weights(each) for each in np.split(residuals, edges[:-1])])
    return coefficients


def _huber_weights(residuals: np.ndarray) -> np.ndarray:
    if not residuals.size:
        return residuals
    scale = HUBER_SCALE * max(float(np.median(residuals)), 1e-6)
    return np.minimum(1.0, scale / np.maximum(residuals, 1e-12))
