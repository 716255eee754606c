"""Who may call: a bearer token, compared in constant time."""

import hmac
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from paceline.control_api.errors import ProblemError, StartupError

bearer = HTTPBearer(auto_error=False, description="The token in the file that `paceline up` names.")


class TokenFile:
    """One shared token in a file, read anew whenever the file changes."""

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

    def accepts(self, token: str) -> bool:
        """Tell whether the token is the right one, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(token.encode(), self.load())


async def require_token(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> None:
    """Let a request through that carries the right token.

    Raises:
        ProblemError: 401 for a missing or a wrong token.
    """
    tokens: TokenFile = request.app.state.tokens
    if credentials is not None and tokens.accepts(credentials.credentials):
        return
    fault = "no bearer token was sent" if credentials is None else "the bearer token is not the right one"
    raise ProblemError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        f"{fault}: send `Authorization: Bearer <token>` with the token from the file that `paceline up` names",
        headers={"WWW-Authenticate": 'Bearer realm="paceline"'},
    )
