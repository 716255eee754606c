"""What the operator's tests share: a small client of the API server, engines, a kubelet's part, the operator itself."""

from oplab.api import Api, RefusedError, profile_api, profile_manifest

__all__ = ["Api", "RefusedError", "profile_api", "profile_manifest"]
