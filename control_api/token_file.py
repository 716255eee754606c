"""The gate of a local run: one shared token in a file, compared in constant time, for everything."""

import hmac
from pathlib import Path
from typing import Final

from paceline.control_api.auth import Caller, Verb
from paceline.control_api.errors import StartupError

LOCAL_CALLER: Final = Caller("local")


class TokenFile:
    """One shared token in a file, read anew whenever the file changes."""

    token_hint = "the token from the file that `paceline up` names"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = b""
        self.load()

    def load(self) -> bytes:
        """Return the token.

        Raises:
            StartupError: the file can't be read or is empty.
        """
        try:
            info = self.path.stat()
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if stamp != self._stamp:
                self._token = self.path.read_bytes().strip()
                self._stamp = stamp
        except OSError as error:
            message = f"the token file can't be read: {error}. `paceline up` writes it; set PACELINE_API_TOKEN_FILE"
            raise StartupError(message) from error
        if not self._token:
            message = f"the token file {self.path} is empty: write a long random word into it (openssl rand -hex 32)"
            raise StartupError(message)
        return self._token

    async def authenticate(self, token: str) -> Caller | None:
        """Know the bearer of the right token, in a time that does not depend on how much of it is right."""
        return LOCAL_CALLER if hmac.compare_digest(token.encode(), self.load()) else None

    async def allows(self, caller: Caller, verb: Verb, namespace: str | None, name: str | None) -> bool:
        """Allow everything: whoever has the token started this run."""
        return True
