"""What the tests of the control API in a cluster share: the program under its chart's rights, callers, statuses."""

from apilab.callers import token_of
from apilab.program import ControlApi
from apilab.requests import FIXED, NOW, live, plan_for, problem
from apilab.statuses import write_status

__all__ = ["FIXED", "NOW", "ControlApi", "live", "plan_for", "problem", "token_of", "write_status"]
