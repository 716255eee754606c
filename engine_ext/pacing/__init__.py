"""Prefill pacing: when prefill chunks may share a step with requests that decode."""
