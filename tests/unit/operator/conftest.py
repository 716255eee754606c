"""Make the helpers beside the tests importable, and assert no timings in property tests."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("operator", deadline=None)
settings.load_profile("operator")
