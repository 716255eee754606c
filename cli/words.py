"""Settings in words, the same in every command."""

from paceline.engine_ext.settings import CoalescingSettings, FinalChunk, PacingMode, PacingSettings


def describe_pacing(pacing: PacingSettings) -> str:
    """Return a pacing in words: `Disabled`, `Fixed, interval 4`, `SLO, 80 ms a token`."""
    if pacing.mode is PacingMode.FIXED:
        return f"Fixed, interval {pacing.interval}"
    if pacing.mode is PacingMode.SLO and pacing.slo is not None:
        slo = pacing.slo
        return (
            f"SLO, {slo.time_per_output_token_milliseconds} ms a token, "
            f"prefill within {slo.max_prefill_delay_seconds} s ({slo.precedence.value} first)"
        )
    return "Disabled"


def describe_coalescing(coalescing: CoalescingSettings) -> str:
    """Return coalescing in words: `Disabled`, `Enabled, spans up to 8192 tokens (SinglePrefill)`."""
    if coalescing.final_chunk is FinalChunk.DISABLED:
        return "Disabled"
    return f"Enabled, spans up to {coalescing.max_span_tokens} tokens ({coalescing.admission.value})"
