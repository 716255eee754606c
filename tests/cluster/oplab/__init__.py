"""What the operator's tests share: a small client of the API server, engines, a kubelet's part, the operator itself."""

from oplab.api import Api, RefusedError, new_space, profile_api, profile_manifest
from oplab.engines import FakeEngines
from oplab.lab import Lab

__all__ = ["Api", "FakeEngines", "Lab", "RefusedError", "new_space", "profile_api", "profile_manifest"]
