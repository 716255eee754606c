"""Plays an engine's process for the supervisor's tests: it prints, listens and dies like vLLM, but computes nothing.

Called like a Python interpreter (`fake -P -m vllm.entrypoints.openai.api_server --port ...`). FAKE_ENGINE says how it
behaves: `ready` (default), `hang` (never ready), `stubborn` (ignores SIGTERM, and starts a process in a session of its
own), `crash` (prints FAKE_ENGINE_LOG and exits with 1). A running one dies of SIGUSR1 after printing FAKE_ENGINE_LOG.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOG = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {}",
    "(Worker pid=3) INFO 01-01 00:00:00 [cpu_model_runner.py:68] Starting to load model /m...",
    "(EngineCore pid=2) INFO 01-01 00:00:00 [kv_cache_utils.py:2327] CPU KV cache size: 9 tokens",
    "(APIServer pid=1) INFO 01-01 00:00:00 [entry.py:140] Starting vLLM server on http://127.0.0.1",
)


class Handler(BaseHTTPRequestHandler):
    """The OpenAI API's health, and the admin port's settings."""

    settings = json.loads(Path(os.environ.get("PACELINE_SETTINGS_FILE", "/dev/null")).read_text() or "{}")

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer health, readiness and settings."""
        if self.path in ("/health", "/readyz", "/healthz"):
            self.answer({})
        elif self.path == "/paceline/v1/settings":
            self.answer(self.state())
        else:
            self.send_error(404)

    def do_PUT(self) -> None:
        """Take new settings."""
        type(self).settings = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(self.state())

    def state(self) -> dict[str, object]:
        """Return what an engine of one core would say."""
        fence = {name: self.settings.get(name, 0) for name in ("epoch", "revision")}
        core = {"engine": 0, **fence, "step": 1, "paced": True, "reasons": []}
        return {"settings": self.settings, "engines": [core], "compatible": True, "reasons": []}

    def answer(self, document: object) -> None:
        """Send a JSON document."""
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def say(text: str) -> None:
    """Print to the log at once."""
    print(text, file=sys.stderr, flush=True)


def die(*_: object) -> None:
    """End as a crashed engine does."""
    say(os.environ.get("FAKE_ENGINE_LOG", ""))
    os._exit(1)


def serve(port: int) -> None:
    """Answer on a port of the loopback address until the process ends."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """Behave."""
    if "-c" in sys.argv:
        print(json.dumps({"vllm": True, "paceline": True, "version": os.environ.get("FAKE_ENGINE_VERSION", "?")}))
        return
    behaviour = os.environ.get("FAKE_ENGINE", "ready")
    say(LOG[0])
    if behaviour == "crash":
        die()
    signal.signal(signal.SIGUSR1, die)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "straggler"], start_new_session=True)
    for line in LOG[1:]:
        say(line)
    if behaviour != "hang":
        serve(int(sys.argv[sys.argv.index("--port") + 1]))
        serve(int(os.environ["PACELINE_ADMIN_PORT"]))
    while True:
        time.sleep(600)


if __name__ == "__main__":
    main()
