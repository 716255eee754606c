"""A completion that is streamed while something happens to its engine, and how it ended."""

import json
import threading

import httpx


class Stream:
    """A completion of `tokens` tokens, read in a thread of its own; `wait_begun` returns with its first event."""

    def __init__(self, url: str, tokens: int) -> None:
        self.events: list[str] = []
        self._url = url
        self._tokens = tokens
        self._broken = ""
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_begun(self, seconds: float = 120) -> None:
        assert self._begun.wait(seconds), f"the stream has not begun: {self._broken}"

    def end(self, seconds: float = 300) -> str:
        """Wait for the end; return `whole`, `error event`, `broken off` by the transport, or `silently short`."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream has not ended"
        if self._broken:
            return "broken off"
        if any('"error"' in event for event in self.events):
            return "error event"
        finished = [event for event in self.events if event != "[DONE]" and _finish_reason(event) == "length"]
        return "whole" if finished and self.events[-1] == "[DONE]" else "silently short"

    def _read(self) -> None:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": self._tokens, "ignore_eos": True, "stream": True}
        url = f"{self._url}/v1/completions"
        try:
            with httpx.stream("POST", url, json=body, trust_env=False, timeout=300) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
                        self._begun.set()
        except httpx.TransportError as error:
            self._broken = str(error) or type(error).__name__


def _finish_reason(event: str) -> str | None:
    choices = json.loads(event).get("choices")
    return str(choices[0]["finish_reason"]) if choices else None
