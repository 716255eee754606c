"""A whole experiment on a real engine with the real pacing: what is counted must come out exactly."""

import httpx
from engine_process import Engine

from paceline.bench.capacity import capacity_problems
from paceline.bench.engine import EngineAddress, EngineClient
from paceline.bench.outputs import compare_outputs
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import AuditOutcome, BlockRecord, ExperimentResult, Metric, RequestRecord, Role
from paceline.bench.runner import EngineLimits, describe_engine, run_experiment
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings

PROMPT_TOKENS = 4_096
TIMED = {"clientLag", "controlArm", "steadyMachine", "pacingFormula"}
"""Audits that a busy machine may fail."""

PLAN = ExperimentPlan(
    name="real",
    arms=(Arm(name="off"), Arm(name="n4", pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))),
    workload=MixedPhase(injected_prompt_tokens=PROMPT_TOKENS, before_seconds=0.5),
    max_client_lag_milliseconds=60_000,
)


class Keeper:
    """Keeps what a run measures."""

    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []
        self.blocks: list[BlockRecord] = []

    async def event(self, event: ProgressEvent) -> None:
        print(event.message)

    async def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    async def block(self, record: BlockRecord) -> None:
        self.blocks.append(record)


class LiveApplier:
    """Puts an arm's settings on the engine's admin port at the next revision."""

    def __init__(self, admin: httpx.AsyncClient) -> None:
        self.admin = admin

    async def __call__(self, arm: Arm) -> int:
        running = LiveSettings.model_validate((await self.admin.get("/paceline/v1/settings")).json()["settings"])
        wanted = LiveSettings(
            epoch=running.epoch, revision=running.revision + 1, pacing=arm.pacing, coalescing=arm.coalescing
        )
        answer = await self.admin.put("/paceline/v1/settings", json=wanted.model_dump(mode="json", by_alias=True))
        assert answer.status_code == 200, answer.text
        return wanted.revision


async def run(engine: Engine, plan: ExperimentPlan) -> tuple[ExperimentResult, Keeper]:
    keeper, headers = Keeper(), {"Authorization": f"Bearer {engine.token}"}
    address = EngineAddress(engine.base_url, admin_url=engine.admin_url, admin_token=engine.token)
    async with (
        EngineClient(address) as client,
        httpx.AsyncClient(base_url=engine.admin_url, headers=headers, timeout=600) as admin,
    ):
        result = await run_experiment(plan, client, LiveApplier(admin), keeper, EngineLimits(512, 8))
        await LiveApplier(admin)(Arm(name="off"))
    return result, keeper


async def test_a_paced_prefill_on_a_real_engine(engine: Engine) -> None:
    result, keeper = await run(engine, PLAN)
    for audit in result.audits:
        if audit.name not in TIMED:
            assert audit.outcome is AuditOutcome.PASSED, audit
    assert all(arm.valid for arm in result.arms)

    for block in keeper.blocks:
        steps = block.prefill_steps
        assert steps is not None
        assert (steps.complete, steps.tokens, block.injected_cached_tokens) == (True, PROMPT_TOKENS, 0)
        # One step in N carries a chunk, from the first chunk to the last.
        interval = 4 if block.arm == "n4" else 1
        assert steps.steps == (steps.chunks - 1) * interval + 1
        assert steps.chunks >= PROMPT_TOKENS // 512
        assert set(block.metrics) == set(Metric)

    injected = {(record.arm, record.block): record for record in keeper.requests if record.role is Role.INJECTED}
    assert all(record.usage.prompt_tokens == PROMPT_TOKENS for record in injected.values())
    assert all(record.usage.completion_tokens == record.output_tokens == 8 for record in injected.values())
    assert {record.token_source for record in keeper.requests} == {"logprobs"}
    # The comparison of outputs would see a wrong state: those of another prompt are told apart.
    other = compare_outputs(injected["off", 0], injected["off", 1], PLAN.logprob_tolerance)
    assert not other.equal


async def test_a_step_too_small_for_a_state_block_is_refused(engine: Engine) -> None:
    """The block follows from the processor: 256 tokens with AMX, 128 with AVX2."""
    async with EngineClient(EngineAddress(engine.base_url)) as client:
        fingerprint = await describe_engine(client)
        block = int(fingerprint.cache_config["block_size"])
        small = await describe_engine(client, EngineLimits(max_num_batched_tokens=block + 1))
    assert fingerprint.cache_config["mamba_cache_mode"] == "align"
    assert capacity_problems(PLAN, small) == [
        f"spec.engine.maxNumBatchedTokens {block + 1} is too small for a prefill chunk of {block} tokens beside "
        f"2 residents: raise it to at least {block + 2}, or use at most 1 residents"
    ]
