"""The engine pods' ServiceAccount."""

from paceline.operator.specs.subject import Manifest, Subject


def service_account(subject: Subject) -> Manifest:
    """Return an account without rights, whose token no pod gets: an engine never talks to the API server."""
    return subject.manifest("v1", "ServiceAccount", subject.account_name, automountServiceAccountToken=False)
