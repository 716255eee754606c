"""`paceline experiment`: run, watch, list and cancel measured comparisons."""

import uuid
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import Metric
from paceline.cli.apis import experiments_api, profile_api
from paceline.cli.client import ApiClient
from paceline.cli.commands.report import check_plot_path, fetch, show
from paceline.cli.errors import CliError
from paceline.cli.follow import follow
from paceline.cli.output import OutputFormat, OutputOption, notice_console, print_json, result_console, table
from paceline.cli.plans import arm_of, build_plan, merge_plan, read_plan
from paceline.cli.words import describe_pacing
from paceline.control_api.schemas.experiments import ExperimentDetail, ExperimentStatus, ExperimentSummary

RUN_EPILOG = """Examples:

  paceline experiment run cpu-tiny --arm off --arm 4

  paceline experiment run --residents 4 --prompt-tokens 16384 --arm off --arm 4 --arm 80ms --blocks 3

  paceline experiment run --plan plan.yaml --plot rates.svg

Ctrl-C stops only the watching; the experiment goes on, and the command to end it is printed.
Exit status 1: the experiment failed, or an audit says that its numbers can't be believed."""

SHOW_EPILOG = """Examples:

  paceline experiment show latest

  paceline experiment show 0192f3c4a5b6 --follow"""

LIST_EPILOG = """Examples:

  paceline experiment list --limit 5

  paceline experiment list --output json"""

CANCEL_EPILOG = """Examples:

  paceline experiment cancel 0192f3c4a5b6"""

SHOWN = (Metric.RESIDENT_RATE_BEFORE, Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN)

app = typer.Typer(
    help="Run, watch, list and cancel measured comparisons of settings.", no_args_is_help=True, rich_markup_mode=None
)

Identifier = Annotated[str, typer.Argument(metavar="ID", help="The experiment, or `latest`.")]


@app.command(epilog=RUN_EPILOG)
def run(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile; may be left out if only one runs.")
    ] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A whole plan, YAML or JSON; options overrule it.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The experiment's name in lists.")] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm", metavar="ARM", help="off, an interval as 4, or a promise as 80ms; the first is the baseline."
        ),
    ] = None,
    residents: Annotated[int | None, typer.Option(help="Requests that decode throughout.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Length of the prompt that arrives.")] = None,
    prefill_seconds: Annotated[
        float | None,
        typer.Option(help="Instead: how long its unpaced prefill should take; the length is found. [default: 10]"),
    ] = None,
    resident_prompt_tokens: Annotated[int | None, typer.Option(help="Length of each resident's prompt.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Measured blocks of each arm.")] = None,
    warm_up_blocks: Annotated[int | None, typer.Option(help="Blocks before them that don't count.")] = None,
    control_arm: Annotated[
        bool | None, typer.Option("--control-arm/--no-control-arm", help="Repeat the baseline as an A/A arm.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts and of the order of blocks.")] = None,
    follow_progress: Annotated[bool, typer.Option("--follow/--no-follow", help="Watch until it has ended.")] = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the token rates into a file at the end.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare settings on a running profile: residents decode, a cold prompt arrives, blocks alternate."""
    workload = {
        "residents": residents,
        "injectedPromptTokens": prompt_tokens,
        "targetPrefillSeconds": prefill_seconds,
        "residentPromptTokens": resident_prompt_tokens,
    }
    overrides: dict[str, Any] = {
        "name": title,
        "arms": [arm_of(text).model_dump(mode="json", by_alias=True, exclude_none=True) for text in arms or ()] or None,
        "blocks": blocks,
        "warmUpBlocks": warm_up_blocks,
        "controlArm": control_arm,
        "seed": seed,
    }
    plan = _plan(plan_file, _given(overrides), _given(workload))
    if plot is not None:
        check_plot_path(plot)
    with profile_api(name or plan.profile) as (key, client):
        body = plan.model_copy(update={"profile": key}).model_dump(mode="json", by_alias=True, exclude_none=True)
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        response = client.send("POST", "/v1/experiments", json=body, headers=headers)
        experiment = client.read(ExperimentSummary, response.json())
        notice_console().print(f"experiment {experiment.id} on {key}: {_size(plan)}", markup=False)
        if follow_progress:
            _finish(client, _watch(client, experiment), plot, output)
        elif output is OutputFormat.JSON:
            print_json(response.json())
        else:
            typer.echo(experiment.id)


@app.command("show", epilog=SHOW_EPILOG)
def show_experiment(
    identifier: Identifier,
    follow_progress: Annotated[bool, typer.Option("--follow", help="Watch until it has ended.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show one experiment: what it compares, how far it is, and what its blocks measured."""
    with experiments_api() as client:
        detail, document = fetch(client, identifier)
        if follow_progress and not detail.status.ended:
            _watch(client, detail)
            detail, document = fetch(client, detail.id)
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        _print_detail(detail)


@app.command("list", epilog=LIST_EPILOG)
def list_experiments(
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this profile: NAME or NAMESPACE/NAME.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 20,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the stored experiments, the newest first."""
    key = profile if profile is None or "/" in profile else f"default/{profile}"
    parameters: dict[str, str | int] = {"limit": limit} | ({"profile": key} if key else {})
    with experiments_api() as client:
        items = client.get("/v1/experiments", **parameters)["items"]
    if output is OutputFormat.JSON:
        print_json(items)
        return
    made = table("ID", "NAME", "PROFILE", "STATUS", "CREATED", "PROGRESS")
    for item in (client.read(ExperimentSummary, item) for item in items):
        done = f"{item.progress.position}/{item.progress.total} blocks" if item.progress else "-"
        created = item.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        made.add_row(item.id, item.name, item.profile, item.status.value, created, done)
    if items:
        result_console().print(made)
    else:
        notice_console().print("no experiment is stored; run one with `paceline experiment run`")


@app.command(epilog=CANCEL_EPILOG)
def cancel(identifier: Identifier) -> None:
    """Stop an experiment; what it measured so far is kept."""
    with experiments_api() as client:
        if identifier == "latest":
            identifier = fetch(client, identifier)[0].id
        path = f"/v1/experiments/{quote(identifier, safe='')}/cancel"
        experiment = client.read(ExperimentSummary, client.send("POST", path).json())
    if experiment.status.ended and not experiment.cancel_requested:
        notice_console().print(
            f"experiment {experiment.id} had already {experiment.status.value.lower()}", markup=False
        )
    else:
        notice_console().print(f"experiment {experiment.id} is being cancelled", markup=False)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _plan(path: Path | None, overrides: dict[str, Any], workload: dict[str, Any]) -> ExperimentPlan:
    document = read_plan(path) if path else {}
    if "arms" not in {**document, **overrides}:
        raise typer.BadParameter("say what to compare, as in --arm off --arm 4, or give a plan with --plan FILE")
    return build_plan(merge_plan(document, overrides, workload))


def _size(plan: ExperimentPlan) -> str:
    arms = ", ".join(arm.name for arm in plan.all_arms)
    work = plan.workload
    prompt = (
        f"a prompt whose unpaced prefill takes about {work.target_prefill_seconds:g} s"
        if work.injected_prompt_tokens is None
        else f"a prompt of {work.injected_prompt_tokens} tokens"
    )
    return f"arms {arms}; {plan.blocks} blocks each; {work.residents} residents, {prompt}"


def _watch(client: ApiClient, experiment: ExperimentSummary) -> ExperimentSummary:
    console = notice_console()
    try:
        return follow(client, experiment, console)
    except KeyboardInterrupt:
        console.print(
            f"\nexperiment {experiment.id} goes on; `paceline experiment show {experiment.id} --follow` watches it, "
            f"`paceline experiment cancel {experiment.id}` ends it",
            markup=False,
        )
        raise


def _finish(client: ApiClient, experiment: ExperimentSummary, plot: Path | None, output: OutputFormat) -> None:
    detail, document = fetch(client, experiment.id)
    if output is OutputFormat.JSON:
        print_json(document)
    if detail.status is not ExperimentStatus.SUCCEEDED and detail.failure:
        raise CliError(f"experiment {detail.id} has {detail.status.value.lower()}: {detail.failure}")
    show(client, detail, plot, quiet=output is OutputFormat.JSON)


def _print_detail(detail: ExperimentDetail) -> None:
    out = result_console()
    out.print(f"{detail.id}  {detail.name}  ({detail.profile})", markup=False)
    out.print(f"{detail.status.value}: {_size(detail.plan)}; seed {detail.seed}", markup=False)
    if detail.failure:
        out.print(detail.failure, markup=False)
    arms = table("ARM", "PACING")
    for arm in detail.arms:
        arms.add_row(arm.name, describe_pacing(arm.pacing))
    out.print(arms)
    if not detail.blocks:
        return
    blocks = table("BLOCK", "ARM", "RESIDENT TOK/S BEFORE", "DURING", "TTFT (S)", "PROBLEMS")
    for block in detail.blocks:
        values = [f"{block.metrics[each]:.2f}" if each in block.metrics else "-" for each in SHOWN]
        label = "warm-up" if block.warm_up else str(block.block)
        blocks.add_row(label, block.arm, *values, "; ".join(block.problems))
    out.print(blocks)
