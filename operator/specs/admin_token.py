"""The Secret with the token of the engines' admin port."""

import base64
import hashlib
import hmac

from paceline.operator.specs.subject import Manifest, Subject

TOKEN_KEY = "token"


def admin_token(operator_key: bytes, profile_uid: str) -> str:
    """Return a profile's admin token, derived from the operator's key and the profile's UID.

    Being derived, it never has to be read back: the operator needs no right to read Secrets beside its own key.
    """
    digest = hmac.new(operator_key, profile_uid.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def admin_token_secret(subject: Subject, operator_key: bytes) -> Manifest:
    """Return the Secret that engine pods mount. It is created once and never changed."""
    token = admin_token(operator_key, subject.uid)
    return subject.manifest("v1", "Secret", subject.token_name, type="Opaque", stringData={TOKEN_KEY: token})
