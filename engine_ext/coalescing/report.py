"""What coalescing did: counters, written by the scheduler's thread and read between its steps."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from paceline.engine_ext.coalescing.plan import Refusal, SpanPlan


@dataclass(slots=True)
class CoalescingCounters:
    """Spans that ran in one pass, their tokens, the states they kept, and the spans not planned by reason."""

    spans: int = 0
    span_tokens: int = 0
    exported_states: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)

    def planned(self, plan: SpanPlan) -> None:
        """Count a span that was scheduled with its plan; one that only keeps its end is no coalesced span."""
        self.exported_states += len(plan.targets) + plan.keeps_end
        if plan.targets:
            self.spans += 1
            self.span_tokens += plan.tokens

    def to_wire(self) -> dict[str, Any]:
        """Return the counters as the admin route answers them."""
        return {
            "plannedSpans": self.spans,
            "plannedTokens": self.span_tokens,
            "exportedStates": self.exported_states,
            "notPlanned": {reason.value: count for reason, count in sorted(self.refused.items())},
        }
