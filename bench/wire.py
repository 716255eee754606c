"""The base of everything that an experiment sends or stores."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Seconds = Annotated[float, Field(allow_inf_nan=False)]
"""A time or duration in seconds; points in time count from the run's clock origin unless the field says otherwise."""


class WireModel(BaseModel):
    """camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
