"""The dashboard: static files of our own. They hold no data, so they need no token; their calls do."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

WEB: Final = Path(__file__).resolve().parent.parent / "web"

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def dashboard() -> FileResponse:
    """Return the page; everything else on it comes from /web and /v1."""
    return FileResponse(WEB / "index.html", headers=_headers())


class WebFiles(StaticFiles):
    """The page's scripts and styles, looked at anew after every upgrade of Paceline."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file with the page's headers."""
        response = await super().get_response(path, scope)
        response.headers.update(_headers())
        return response


def _headers() -> dict[str, str]:
    return {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
