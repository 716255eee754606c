"""All objects of a profile at once."""

from dataclasses import dataclass

from paceline.operator.specs.disruption_budget import disruption_budget
from paceline.operator.specs.network_policy import network_policy
from paceline.operator.specs.pod_monitor import pod_monitor
from paceline.operator.specs.service_account import service_account
from paceline.operator.specs.services import admin_service, serving_service
from paceline.operator.specs.subject import Manifest, Subject
from paceline.operator.specs.workload import engine_template


@dataclass(frozen=True)
class Desired:
    """What a profile needs beside its settings, token and replicas.

    `companions` may be applied at any time. `template` restarts engines where it differs from the running one.
    """

    companions: tuple[Manifest, ...]
    template: Manifest


def desired_objects(subject: Subject) -> Desired:
    """Build all objects of a profile without problems, in the order in which they are applied."""
    companions = [
        service_account(subject),
        serving_service(subject),
        admin_service(subject),
        disruption_budget(subject),
    ]
    if subject.config.network_policy:
        companions.append(network_policy(subject))
    if subject.config.pod_monitor:
        companions.append(pod_monitor(subject))
    return Desired(tuple(companions), engine_template(subject))
