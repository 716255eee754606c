"""What pacing reads of vLLM's requests: who decodes, who can be scheduled, who is never held.

Everything here looks at requests in the scheduler's `running` list only, since `is_prefill_chunk` and
`num_preemptions` of a waiting request are left over from before its preemption.
"""

from collections.abc import Iterable
from typing import Any


def is_finishing(request: Any, max_model_len: int) -> bool:
    """Tell whether the output in flight reaches the request's last token, so that it decodes no more.

    Under asynchronous scheduling `num_computed_tokens` runs ahead of the tokens seen; the sum is the scheduler's own.
    """
    placeholders = request.num_output_placeholders
    if placeholders <= 0:
        return False
    computed = request.num_computed_tokens
    last = request.num_prompt_tokens + request.max_tokens
    return computed + 2 - placeholders >= last or computed + 1 >= max_model_len


def is_decoder(request: Any, max_model_len: int) -> bool:
    """Tell whether a running request decodes: it has output, no prompt left to compute, and tokens to come.

    A request whose final chunk is still in flight has no output yet and is not a decoder.
    """
    return request.num_output_tokens > 0 and not request.is_prefill_chunk and not is_finishing(request, max_model_len)


def can_decode_now(request: Any, step: int) -> bool:
    """Tell whether a decoder can be scheduled in scheduler step `step`.

    With pipeline parallelism its last step may still be in flight, and then it can't.
    """
    if step < getattr(request, "next_decode_eligible_step", 0):
        return False
    return request.num_tokens_with_spec + request.num_output_placeholders > request.num_computed_tokens


def any_decoder(running: Iterable[Any], max_model_len: int) -> bool:
    """Tell whether any running request decodes."""
    return any(is_decoder(request, max_model_len) for request in running)


def any_schedulable_decoder(running: Iterable[Any], max_model_len: int, step: int) -> bool:
    """Tell whether any decoder can be scheduled now: without one, holding prefills would waste the step."""
    return any(is_decoder(request, max_model_len) and can_decode_now(request, step) for request in running)


def is_exempt(request: Any) -> bool:
    """Tell whether a prefill is never held: once preempted, holding it would have it preempted again and again."""
    return request.num_preemptions > 0
