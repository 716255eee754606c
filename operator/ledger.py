"""The next live settings of a profile: which revision, which epoch. Pure."""

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.status import ChangeKind, ChangeStatus, InferenceProfileStatus
from paceline.operator.plan import Plan, combine, hot_changes
from paceline.operator.specs.settings_map import Ledger

_LONGEST_MESSAGE = 2_000
Fence = tuple[int, int]


def next_settings(
    wanted: LiveSettings,
    ledger: Ledger | None,
    previous: InferenceProfileStatus,
    *,
    claim: bool,
    rival: Fence | None = None,
) -> LiveSettings:
    """Return the settings to have in force: the knobs of `wanted`, with the fence that they need.

    The revision moves when the knobs do, and where the ledger was lost, since then nobody knows which knobs the last
    one had. The epoch moves when a new leader claims it, when the ledger was lost, and above that of an engine that
    runs other settings at or above the ledger's fence (`rival`), since it would refuse all up to there.
    """
    known = (0, 0) if ledger is None else ledger.settings.fence
    epoch = max(known[0], previous.epoch)
    revision = max(known[1], previous.revision)
    if ledger is None or not ledger.settings.same_knobs(wanted):
        revision += 1
    if claim or ledger is None:
        epoch += 1
    if rival is not None:
        epoch = max(epoch, rival[0] + 1)
    return wanted.model_copy(update={"epoch": epoch, "revision": revision})


def change_of(
    generation: int,
    ledger: Ledger | None,
    wanted: LiveSettings,
    cold: tuple[str, ...] | None,
) -> ChangeStatus:
    """Return the change that a generation of the profile brought; `cold` is None where there is no engine yet.

    The ledger's own record of this generation stands: a pass that was interrupted must not forget what it began.
    """
    if ledger is not None and ledger.change is not None and ledger.change.generation == generation:
        return ledger.change
    if cold is None:
        return ChangeStatus(kind=ChangeKind.COLD, message="new profile: its engines are started", generation=generation)
    hot = () if ledger is None else hot_changes(ledger.settings, wanted)
    plan: Plan = combine(cold=cold, hot=hot)
    return ChangeStatus(kind=plan.kind, message=plan.message[:_LONGEST_MESSAGE], generation=generation)
