"""`paceline crd`: the custom resource definition."""

import typer

from paceline.operator.api.crd import crd_yaml

EPILOG = """Examples:

  paceline crd | kubectl apply --server-side -f -"""


def crd() -> None:
    """Print the CustomResourceDefinition of InferenceProfile as YAML."""
    typer.echo(crd_yaml(), nl=False)
