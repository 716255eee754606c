"""`paceline plan`: what a changed profile would do to the engine that runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.apis import profile_api
from paceline.cli.output import OutputFormat, OutputOption, print_json, result_console
from paceline.cli.profile_file import load_profile
from paceline.operator.api.status import ChangeKind
from paceline.operator.api.v1alpha1 import InferenceProfile
from paceline.operator.plan import plan_change

EPILOG = """Examples:

  paceline plan my-profile.yaml

  paceline plan my-profile.yaml --output json | jq -r .kind

The file is checked first; then it is compared with the profile of its name that runs. Nothing is changed."""


def plan(
    profile_file: Annotated[Path, typer.Argument(metavar="PROFILE.yaml", help="The profile as it should be.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell whether a profile differs from the running one, and whether that change is hot or needs a new engine."""
    wanted = load_profile(profile_file)
    with profile_api(f"{wanted.metadata.namespace}/{wanted.metadata.name}") as (key, client):
        running = InferenceProfile.model_validate(client.get(f"/v1/profiles/{key}")["profile"])
    change = plan_change(running.spec, wanted.spec)
    if output is OutputFormat.JSON:
        print_json({"profile": key, "kind": change.kind.value, "fields": list(change.fields)})
        return
    out = result_console()
    heading = {
        ChangeKind.HOT: "hot change: applied between two engine steps, nothing restarts",
        ChangeKind.COLD: "cold change: needs a new engine, and running streams end",
    }.get(change.kind, "no engine is touched")
    out.print(f"{key}: {heading}", markup=False)
    for field in change.fields:
        out.print(f"  {field}", markup=False, soft_wrap=True)
    if change.kind is ChangeKind.HOT:
        out.print("Apply it with `paceline pace` or `paceline coalesce`.", markup=False)
    if change.kind is ChangeKind.COLD:
        out.print(f"Apply it with `paceline down {key}` and `paceline up {profile_file}`.", markup=False)
