"""Odd but legal input: names that no Service may have, arguments that Kubernetes would expand."""

import re

import pytest
from oplab import Lab

from paceline.operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, SECRETS, SERVICES
from paceline.operator.specs.names import base_name


@pytest.mark.parametrize("name", ["qwen3.5-27b", "3b", "a" * 63, "a.b"])
def test_a_name_that_no_service_may_have_works(lab: Lab, name: str) -> None:
    with lab.operator():
        lab.profile(name)
        base = base_name(name)
        lab.wait_deployment(base)
        (pod,) = lab.pods(name=base)
        pod.running(ready=True)
        lab.wait_condition("Ready", "True", name=name)
        assert lab.api.get(SERVICES, lab.space, base)["spec"]["selector"]["paceline.dev/profile"] == name
        assert lab.status(name)["endpoint"] == f"http://{base}.{lab.space}.svc"
        assert lab.status(name)["selector"].endswith(f"paceline.dev/profile={name}")


def test_names_that_look_alike_get_objects_of_their_own(lab: Lab) -> None:
    with lab.operator() as operator:
        for name in ("a.b", "a-b"):
            lab.profile(name)
            lab.wait_deployment(base_name(name))
        lab.wait(lambda: operator.is_idle, "idle")
    assert len(lab.api.list(DEPLOYMENTS, lab.space)) == 2
    assert len(lab.api.list(SECRETS, lab.space)) == 2
    assert len(lab.api.list(CONFIG_MAPS, lab.space)) == 2


def expanded(text: str) -> str:
    """Expand as kubelet does with no variable set: `$$` is `$`, and a reference to an unknown variable stays."""
    return re.sub(r"\$(\$|\([^)]*\)?|)", lambda found: "$" if found[1] == "$" else found[0], text)


def test_arguments_reach_the_pod_byte_for_byte(lab: Lab) -> None:
    arguments = [
        "--override-generation-config",
        '{"method": "ngram", "k": 3}',
        "--chat-template",
        "$(HOME) $$(HOME) $HOME ü",
        "",
    ]
    with lab.operator():
        lab.profile(
            engine={
                "accelerator": "NVIDIA",
                "extraArgs": arguments,
                "env": [{"name": "LITERAL", "value": "$(HOME)$$"}],
                "resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}},
            }
        )
        lab.wait_deployment()
        (pod,) = lab.pods()
        spec = lab.api.get(PODS, lab.space, pod.name)["spec"]
    container = spec["containers"][0]
    assert [expanded(word) for word in container["command"][-len(arguments) :]] == arguments
    (literal,) = [variable["value"] for variable in container["env"] if variable["name"] == "LITERAL"]
    assert expanded(literal) == "$(HOME)$$"
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}, "no second GPU"
    assert spec["enableServiceLinks"] is False, "a Service called vllm sets no VLLM_PORT"
    assert spec["automountServiceAccountToken"] is False
