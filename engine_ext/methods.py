"""Names of the methods that the plugin adds to vLLM's engine core, and by which the admin port calls them."""

from typing import Final

STATE_METHOD: Final = "paceline_state"
APPLY_METHOD: Final = "paceline_apply"
STEPS_METHOD: Final = "paceline_steps"
