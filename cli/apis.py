"""The control API for commands that need one, whichever it is."""

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.cli.client import ApiClient
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.instance import api_of, local_api, remote_api, running_profiles
from paceline.cli.local.offline import offline_api


@contextmanager
def experiments_api() -> Iterator[ApiClient]:
    """Open the control API that knows the stored experiments: all local runs share one database.

    While nothing runs, one is started for this command.
    """
    if remote := remote_api():
        with ApiClient(remote) as client:
            yield client
    elif running := running_profiles():
        with ApiClient(local_api(running[0][1])) as client:
            yield client
    else:
        with offline_api() as address, ApiClient(address) as client:
            yield client


@contextmanager
def profile_api(name: str | None) -> Iterator[tuple[str, ApiClient]]:
    """Open the control API of a profile, or of the only one that runs; yield the profile's key too."""
    key, address = api_of(name or _only_profile())
    with ApiClient(address) as client:
        yield key, client


def _only_profile() -> str:
    if remote := remote_api():
        with ApiClient(remote) as client:
            keys = [f"{view['namespace']}/{view['name']}" for view in client.get("/v1/profiles")["items"]]
    else:
        keys = [state.key for state, _ in running_profiles()]
    if len(keys) == 1:
        return keys[0]
    if not keys:
        raise CliError(
            "no profile is running", advice="Start one with `paceline up PROFILE.yaml`.", code=ExitCode.NOT_FOUND
        )
    raise CliError(
        f"{len(keys)} profiles are running: {', '.join(keys)}", advice="Name one of them.", code=ExitCode.INVALID
    )
