"""Server-Sent Events from raw bytes, in pieces as they arrive, so that each event keeps the time of its own arrival.

Follows the event stream format of the HTML standard: events end at an empty line, lines at LF, CR or CRLF.
"""

import codecs
from typing import Final

DONE: Final = "[DONE]"
"""What the OpenAI API sends as the data of its last event."""


class EventStreamDecoder:
    """Cuts a byte stream into the data of its events; an event that the stream's end cuts short is never returned."""

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """Return the data of every event that `received` completes, in order."""
        self._rest += self._text.decode(received)
        events: list[str] = []
        while (line := self._take_line()) is not None:
            if line:
                self._take_field(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events

    def _take_line(self) -> str | None:
        ends = [at for at in (self._rest.find("\n"), self._rest.find("\r")) if at >= 0]
        if not ends:
            return None
        end = min(ends)
        if self._rest[end] == "\r":
            if end + 1 == len(self._rest):
                return None  # the LF of a CRLF may still be on its way
            width = 2 if self._rest[end + 1] == "\n" else 1
        else:
            width = 1
        line, self._rest = self._rest[:end], self._rest[end + width :]
        return line

    def _take_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
