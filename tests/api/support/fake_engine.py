"""A small stand-in for an engine's admin port, as docs/interfaces.md describes it, with faults to order."""

from dataclasses import dataclass, field

from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse

from paceline.engine_ext.settings import LiveSettings, Verdict, judge

TOKEN = "admin-secret"


@dataclass
class FakeEngine:
    """Judges settings as a real engine does. `refuse` answers 422, `silent_cores` leaves cores behind (503)."""

    settings: LiveSettings = field(default_factory=LiveSettings)
    cores: int = 1
    refuse: str | None = None
    silent: bool = False
    reasons: tuple[str, ...] = ()
    pushes: list[LiveSettings] = field(default_factory=list)

    def app(self) -> FastAPI:
        """Return the admin port."""
        app = FastAPI()

        @app.get("/paceline/v1/settings")
        async def read(authorization: str = Header("")) -> JSONResponse:
            return self._guard(authorization) or self._reply()

        @app.put("/paceline/v1/settings")
        async def write(body: LiveSettings, authorization: str = Header("")) -> JSONResponse:
            if denied := self._guard(authorization):
                return denied
            self.pushes.append(body)
            if self.silent:
                return _problem(503, "engine core 0 did not answer in time")
            if self.refuse:
                return _problem(422, self.refuse)
            verdict = judge(self.settings, body)
            if verdict in (Verdict.STALE, Verdict.CONFLICT):
                return _problem(409, f"{verdict.value}: the engine runs {self.settings.fence}")
            self.settings = body
            return self._reply()

        return app

    def _guard(self, authorization: str) -> JSONResponse | None:
        return None if authorization == f"Bearer {TOKEN}" else _problem(401, "wrong token")

    def _reply(self) -> JSONResponse:
        cores = [
            {
                "engine": rank,
                "epoch": self.settings.epoch,
                "revision": self.settings.revision,
                "step": 0,
                "paced": not self.reasons,
                "reasons": list(self.reasons),
            }
            for rank in range(self.cores)
        ]
        settings = self.settings.model_dump(mode="json", by_alias=True)
        return JSONResponse(
            {"settings": settings, "engines": cores, "compatible": not self.reasons, "reasons": list(self.reasons)}
        )


def _problem(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"status": status, "detail": detail}, status, media_type="application/problem+json")
