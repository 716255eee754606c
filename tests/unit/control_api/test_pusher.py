"""Waiting for an engine while others change the settings file, at every point in between."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from paceline.control_api.metrics import Metrics
from paceline.control_api.profiles.base import EngineAccess, LiveState
from paceline.control_api.profiles.engine_client import AdminReply, EngineClient
from paceline.control_api.profiles.local_files import LocalFiles
from paceline.control_api.profiles.pusher import EnginePusher
from paceline.engine_ext.settings import LiveSettings

MINE, THEIRS = LiveSettings(revision=1), LiveSettings(revision=2)


class Client:
    """An engine that runs whatever is pushed."""

    async def push(self, access: EngineAccess, wanted: LiveSettings) -> AdminReply:
        core = {"engine": 0, "epoch": wanted.epoch, "revision": wanted.revision, "paced": True}
        return AdminReply.model_validate({"settings": wanted, "engines": [core], "compatible": True})


@dataclass
class Files:
    """A settings file that somebody else changes right after it was read for the `changed_after`th time."""

    changed_after: int
    reads: int = 0
    others: list[asyncio.Task[LiveState]] = field(default_factory=list)
    pusher: EnginePusher | None = None

    def settings(self) -> LiveSettings:
        self.reads += 1
        if self.reads == self.changed_after and self.pusher is not None:
            self.others.append(asyncio.create_task(self.pusher.push(THEIRS, 5)))
        return MINE if self.reads <= self.changed_after else THEIRS

    def engine(self) -> EngineAccess:
        return EngineAccess("", "", "")


@pytest.mark.parametrize("changed_after", range(1, 8))
async def test_a_change_that_follows_at_once_leaves_the_one_before_it_applied(changed_after: int) -> None:
    files = Files(changed_after)
    pusher = files.pusher = EnginePusher(cast(LocalFiles, files), cast(EngineClient, Client()), Metrics())
    mine = await pusher.push(MINE, 5)
    theirs = await asyncio.gather(*files.others)
    assert mine.applied
    assert all(state.applied and state.settings == THEIRS for state in theirs)
    await pusher.close()
