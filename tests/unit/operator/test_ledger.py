"""Epoch and revision: what moves them, and that no engine ever has reason to refuse them."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings, Verdict, judge
from paceline.operator.api.status import ChangeKind, ChangeStatus, InferenceProfileStatus
from paceline.operator.ledger import change_of, next_settings
from paceline.operator.specs.settings_map import Ledger

NEW = InferenceProfileStatus()


def knobs(interval: int) -> LiveSettings:
    return LiveSettings(pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval))


def ledger(interval: int, epoch: int, revision: int, change: ChangeStatus | None = None) -> Ledger:
    settings = knobs(interval).model_copy(update={"epoch": epoch, "revision": revision})
    return Ledger(settings, change, "1")


def test_a_new_profile_starts_at_one() -> None:
    assert next_settings(knobs(4), None, NEW, claim=True).fence == (1, 1)


def test_a_hot_change_moves_the_revision_only() -> None:
    assert next_settings(knobs(8), ledger(4, 3, 7), NEW, claim=False).fence == (3, 8)
    assert next_settings(knobs(8), ledger(4, 3, 7), NEW, claim=False).pacing.interval == 8


def test_nothing_changed_moves_nothing() -> None:
    assert next_settings(knobs(4), ledger(4, 3, 7), NEW, claim=False) == ledger(4, 3, 7).settings


def test_a_new_leader_moves_the_epoch_only() -> None:
    assert next_settings(knobs(4), ledger(4, 3, 7), NEW, claim=True).fence == (4, 7)


def test_a_lost_ledger_goes_on_above_what_the_status_remembers() -> None:
    remembered = InferenceProfileStatus(epoch=3, revision=7)
    assert next_settings(knobs(4), None, remembered, claim=False).fence == (4, 8)


def test_an_engine_that_is_ahead_is_overtaken() -> None:
    assert next_settings(knobs(4), ledger(4, 3, 7), NEW, claim=False, rival=(9, 2)).fence == (10, 7)
    assert next_settings(knobs(4), ledger(4, 3, 7), NEW, claim=False, rival=(3, 7)).fence == (4, 7)
    assert next_settings(knobs(4), ledger(4, 3, 7), NEW, claim=True, rival=(3, 9)).fence == (4, 7)


small = st.integers(0, 5)


@given(small, small, small, small, small, small, small, st.booleans(), small, small)
def test_no_engine_refuses_what_follows(
    old: int,
    epoch: int,
    revision: int,
    told_epoch: int,
    told: int,
    new: int,
    other: int,
    claim: bool,
    engine_epoch: int,
    engine_revision: int,
) -> None:
    before = ledger(old, epoch, revision)
    status = InferenceProfileStatus(epoch=told_epoch, revision=told)
    running = knobs(other).model_copy(update={"epoch": engine_epoch, "revision": engine_revision})
    refuses = judge(running, before.settings) in (Verdict.STALE, Verdict.CONFLICT)
    rival = running.fence if refuses else None
    after = next_settings(knobs(new), before, status, claim=claim, rival=rival)
    assert after.same_knobs(knobs(new))
    assert judge(running, after) in (Verdict.APPLY, Verdict.SAME)
    assert after.fence >= before.settings.fence
    if not claim and rival is None and told_epoch <= epoch and told <= revision:
        assert (after.revision == revision) == (old == new)
        assert after.epoch == epoch


def test_a_change_is_recorded_once_for_each_generation() -> None:
    recorded = ChangeStatus(kind=ChangeKind.HOT, message="pacing.interval: 2 -> 4", generation=5)
    # A pass was cut after it wrote the ledger: nothing differs any more, and the record stands.
    assert change_of(5, ledger(4, 1, 2, recorded), knobs(4), ()) == recorded
    later = change_of(6, ledger(4, 1, 2, recorded), knobs(8), ())
    assert (later.kind, later.generation) == (ChangeKind.HOT, 6)
    assert "pacing.interval: 4 -> 8" in later.message
    both = change_of(6, ledger(4, 1, 2, recorded), knobs(8), ("model.dtype: auto -> float16",))
    assert both.kind is ChangeKind.COLD
    assert "model.dtype: auto -> float16; pacing.interval: 4 -> 8" in both.message
    assert change_of(6, ledger(4, 1, 2, recorded), knobs(4), ()).kind is ChangeKind.NONE
    assert change_of(1, None, knobs(4), None).message == "new profile: its engines are started"
