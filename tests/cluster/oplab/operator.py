"""The operator under test, in a thread of this process, so that a test can count and cut its calls."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from paceline.operator.config import OperatorConfig
from paceline.operator.controller import Controller
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.connection import connect
from paceline.operator.kube.errors import KubeError, UnreachableError

Access = Path | Configuration
"""A kubeconfig, or the client's own configuration."""

KEY = b"the key of the operators under test"


class KilledError(BaseException):
    """The operator's process ended here."""


class CountedClient(KubeClient):
    """A client that notes its calls, and can die before or after one of its writes.

    `dies_at` counts writes from 1; the write itself is made or not, as `after` says.
    """

    def __init__(self, *arguments: Any, dies_at: int | None = None, after: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.calls: list[tuple[str, str]] = []
        self.writes = 0
        self.failures = 0
        self._dies_at = dies_at
        self._after = after

    async def page(self, *arguments: Any) -> Any:
        try:
            return await super().page(*arguments)
        except UnreachableError:
            self.failures += 1
            raise

    async def watch(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        try:
            async for event in super().watch(*arguments, **named):
                yield event
        except UnreachableError:
            self.failures += 1
            raise

    async def call(self, verb: str, path: str, **named: Any) -> Any:
        self.calls.append((verb, path))
        if verb == "GET":
            return await super().call(verb, path, **named)
        self.writes += 1
        if self.writes == self._dies_at and not self._after:
            raise KilledError
        if self.writes != self._dies_at:
            return await super().call(verb, path, **named)
        # The answer, whatever it is, never reaches the operator.
        with contextlib.suppress(KubeError):
            await super().call(verb, path, **named)
        raise KilledError


class RunningOperator:
    """A controller in a thread. `controller` and `client` may be read by the test; only the thread changes them."""

    def __init__(self, access: Access, config: OperatorConfig, identity: str, **client: Any) -> None:
        self._access = access
        self._config = config
        self._identity = identity
        self._client_options = client
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name=identity)
        self.client: CountedClient | None = None
        self.controller: Controller | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()
        self._started.wait(30)

    def stop(self) -> None:
        """End the operator as a killed process would: wherever it is."""
        with contextlib.suppress(RuntimeError):  # it ended by itself, and so did its loop
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Tell whether all is listed and no profile waits for a pass."""
        controller = self.controller
        return controller is not None and controller.is_synced and controller.queue.is_idle

    def pass_again(self) -> None:
        """Ask for a pass over every profile."""
        controller = self.controller
        assert controller is not None
        self.in_loop(lambda: [controller.queue.add(key) for key in controller.cache.profiles()])

    def in_loop(self, function: Callable[[], Any]) -> Any:
        """Call a function in the operator's thread."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._run())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self._started.set()
            self._loop.close()

    async def _run(self) -> None:
        api = await connect(self._access) if isinstance(self._access, Path) else ApiClient(self._access)
        self.client = CountedClient(api, request_seconds=self._config.request_seconds, **self._client_options)
        self.controller = Controller(self.client, self._config, KEY, self._identity)
        self._started.set()
        try:
            await self.controller.run()
        finally:
            await api.close()
            # TLS connections close over several turns of the loop, and aiohttp offers nothing to wait for.
            await asyncio.sleep(0.2)


def operator_config(admin_port: int, namespaces: list[str], **changes: Any) -> OperatorConfig:
    """Return a configuration for a test: its own namespaces, quick time-outs."""
    config: dict[str, Any] = {
        "engine": {
            "images": {"CPU": "engine-cpu:1", "NVIDIA": "engine:1"},
            "adminPort": admin_port,
            "allowedFileFolders": ["/var/lib/paceline/models"],
        },
        "watch": {"namespaces": namespaces, "serverSeconds": 60, "silenceSeconds": 20},
        "workers": 4,
        "requestSeconds": 5,
        "engineRequestSeconds": 2,
    }
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) and key in config else value
    return OperatorConfig.model_validate(config)


@contextmanager
def running_operator(
    access: Access, config: OperatorConfig, identity: str = "operator-0", **client: Any
) -> Iterator[RunningOperator]:
    """Have an operator at work within the block."""
    operator = RunningOperator(access, config, identity, **client)
    operator.start()
    try:
        yield operator
    finally:
        operator.stop()
