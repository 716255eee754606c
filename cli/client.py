"""Talks to the control API and turns its problem documents into messages."""

from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

import httpx
from pydantic import BaseModel, ValidationError

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.instance import ApiAddress

TIMEOUT_SECONDS: Final = 30.0

_CODES: Final = {
    HTTPStatus.NOT_FOUND: ExitCode.NOT_FOUND,
    HTTPStatus.CONFLICT: ExitCode.BUSY,
    HTTPStatus.PRECONDITION_FAILED: ExitCode.BUSY,
    HTTPStatus.BAD_REQUEST: ExitCode.INVALID,
    HTTPStatus.UNPROCESSABLE_ENTITY: ExitCode.INVALID,
}


class ApiClient:
    """A client of one control API. Every method raises CliError where the API refuses or does not answer."""

    def __init__(self, address: ApiAddress) -> None:
        self.url = address.url
        self.http = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=TIMEOUT_SECONDS,
            # A proxy meant for the internet must not see a loopback address; a remote API may need it.
            trust_env="127.0.0.1" not in address.url,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def get(self, path: str, **parameters: str | int) -> Any:
        """Return the JSON document at a path."""
        return self.send("GET", path, params=parameters).json()

    def read[Model: BaseModel](self, model: type[Model], document: Any) -> Model:
        """Return an answer's document as one of our types; an API of another version may answer with other fields."""
        try:
            return model.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CliError(
                f"the control API at {self.url} answers in another version's words ({where}: {first['msg']})",
                advice="Use the `paceline` of its version; after an upgrade, start the profile anew.",
            ) from None

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and return its successful response."""
        try:
            response = self.http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self.unreachable(error) from None
        check(response)
        return response

    def unreachable(self, error: httpx.TransportError) -> CliError:
        """Return the fault for an API that does not answer."""
        what = "did not answer in time" if isinstance(error, httpx.TimeoutException) else f"can't be reached: {error}"
        return CliError(f"the control API at {self.url} {what}", advice="See `paceline status`.")


def check(response: httpx.Response) -> None:
    """Raise CliError unless the response, fully read, is a success."""
    if response.is_success:
        return
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    status = HTTPStatus(response.status_code)
    detail = problem.get("detail") or problem.get("title") if isinstance(problem, dict) else None
    if status is HTTPStatus.UNAUTHORIZED:
        raise CliError(f"the control API refused the token: {detail or status.phrase}")
    message = str(detail) if detail else f"the control API answered {status} {status.phrase}"
    raise CliError(message, code=_CODES.get(status, ExitCode.FAILED))
