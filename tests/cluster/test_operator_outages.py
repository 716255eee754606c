"""The API server away, hanging, forgetful or strict: the operator goes on, and liveness tells when it can't."""

import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from oplab import Lab
from oplab.proxy import ApiProxy, passes, refusal

from paceline.operator.kube.connection import in_cluster_configuration
from paceline.operator.kube.resources import DEPLOYMENTS, PODS

QUICK_WATCH = {"serverSeconds": 30, "silenceSeconds": 2}


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch") == "true"


def interval(value: int) -> dict[str, Any]:
    return {"pacing": {"mode": "Fixed", "interval": value}}


def test_after_thirty_seconds_without_an_api_server_all_goes_on(lab: Lab) -> None:
    with lab.operator() as operator:
        (pod,) = lab.serve()
        controller, client = operator.controller, operator.client
        assert controller is not None
        assert client is not None
        with lab.server.away():
            back = time.monotonic() + 30
            lab.wait(lambda: time.monotonic() > back and client.failures > 3, "thirty seconds of vain calls", 90)
            assert operator.is_alive
            # Its absence is not the operator's fault: a restart would not help.
            assert operator.in_loop(controller.dead_watches) == []
        lab.change("web", interval(6))
        lab.wait(lambda: pod.engine.settings.pacing.interval == 6, "the change arrives", seconds=60)
        assert operator.is_alive


def test_a_watch_that_is_open_and_silent_is_renewed_in_time(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        held: Counter[str] = Counter()

        def hold_once(request: web.Request) -> str | None:
            if is_watch(request) and not held[request.path]:
                held[request.path] += 1
                return "hold"
            return None

        proxy.fault = hold_once
        with lab.operator(access=proxy.kubeconfig(tmp_path / "kubeconfig"), watch=QUICK_WATCH) as operator:
            lab.wait(lambda: len(held) == 8, "every watch is held")
            lab.profile()
            lab.wait_deployment()
            assert operator.controller is not None
            assert operator.in_loop(operator.controller.dead_watches) == []


def test_a_kind_of_which_nothing_is_heard_since_nothing_happens_keeps_the_operator_alive(lab: Lab) -> None:
    # Bookmarks come once a minute, and of a kind that never changed none: the operator has to find out by itself.
    path = PODS.path(lab.space)
    with lab.operator(watch=QUICK_WATCH) as operator:
        controller, client = operator.controller, operator.client
        assert controller is not None
        assert client is not None
        for lists in range(2, 6):
            lab.wait(lambda lists=lists: client.calls.count(("GET", path)) >= lists, f"pods are listed {lists} times")
            assert operator.in_loop(controller.dead_watches) == []


def test_liveness_fails_when_a_watch_misses_changes_again_and_again(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        proxy.fault = lambda request: "hold" if is_watch(request) and "/pods" in request.path else None
        with lab.operator(access=proxy.kubeconfig(tmp_path / "kubeconfig"), watch=QUICK_WATCH) as operator:
            controller = operator.controller
            assert controller is not None
            lab.profile()
            lab.wait_deployment()
            (pod,) = lab.pods()
            changes = count()

            def dead() -> bool:
                change = {"metadata": {"annotations": {"change": str(next(changes))}}}
                lab.api.merge(PODS, lab.space, pod.name, change)
                return f"pods in {lab.space}" in operator.in_loop(controller.dead_watches)

            lab.wait(dead, "dead", seconds=60)
            proxy.fault = passes
            pod.running(ready=True)
            lab.wait_condition("Ready", "True")
            lab.wait(lambda: operator.in_loop(controller.dead_watches) == [], "alive again")


@pytest.mark.parametrize("how", ["in the stream", "as status"])
def test_an_expired_version_leads_to_a_new_list_that_also_sees_what_vanished(
    lab: Lab, tmp_path: Path, how: str
) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig")
        with lab.operator(access=kubeconfig, watch=QUICK_WATCH):
            pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2})
            gone: Counter[str] = Counter()

            def expire(request: web.Request) -> "web.Response | str | None":
                if not is_watch(request) or "/pods" not in request.path:
                    return None
                if gone[request.path] == 0:
                    # The pod goes while nobody watches.
                    pods[1].delete()
                gone[request.path] += 1
                if gone[request.path] > 3:
                    return None
                return "gone" if how == "in the stream" else refusal(410, "Expired")

            proxy.fault = expire
            lab.wait(lambda: lab.status()["replicas"] == 1, "the pod that vanished is gone", seconds=60)
            assert lab.status()["pods"][0]["name"] == pods[0].name


def test_nine_resets_in_a_row_are_got_over(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        resets: Counter[str] = Counter()

        def reset(request: web.Request) -> str | None:
            # Each watch is reset nine times, and the other requests together.
            what = request.path if is_watch(request) else "others"
            resets[what] += 1
            return "abort" if resets[what] <= 9 else None

        with lab.operator(access=proxy.kubeconfig(tmp_path / "kubeconfig"), watch=QUICK_WATCH) as operator:
            lab.wait(lambda: operator.is_idle, "all listed")
            proxy.fault = reset
            lab.profile()
            lab.wait(lambda: lab.api.find(DEPLOYMENTS, lab.space, "web"), "the Deployment is there", seconds=120)
            # A watch that was open before the fault meets it only when it falls silent and is renewed.
            lab.wait(lambda: min(resets.values()) >= 9, "each watch was reset nine times", seconds=120)
            assert operator.is_alive


def test_a_rotated_token_is_read_from_its_file(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        accepted = {"first"}

        def check(request: web.Request) -> web.Response | None:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            return None if token in accepted else refusal(401, "Unauthorized")

        proxy.fault = check
        (tmp_path / "token").write_text("first\n")
        (tmp_path / "ca.crt").write_bytes(lab.server.ca_file.read_bytes())
        access = in_cluster_configuration(proxy.url, tmp_path)
        with lab.operator(access=access, watch=QUICK_WATCH) as operator:
            (pod,) = lab.serve()
            (tmp_path / "token").write_text("second\n")
            accepted.clear()
            accepted.add("second")
            lab.change("web", interval(5))
            lab.wait(lambda: pod.engine.settings.pacing.interval == 5, "the change arrives", seconds=60)
            assert operator.is_alive


def test_a_refused_content_type_is_retried_with_growing_pauses_and_recovers(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        refused: list[str] = []

        def refuse(request: web.Request) -> web.Response | None:
            if request.method == "PATCH" and request.content_type == "application/apply-patch+yaml":
                refused.append(request.path)
                return refusal(415, "UnsupportedMediaType")
            return None

        proxy.fault = refuse
        with lab.operator(access=proxy.kubeconfig(tmp_path / "kubeconfig")) as operator:
            lab.profile()
            lab.wait(lambda: len(refused) == 4, "refused four times")
            proxy.fault = passes
            lab.wait_deployment()
            assert operator.is_alive


def test_a_status_that_an_old_definition_prunes_is_not_written_again_and_again(lab: Lab, tmp_path: Path) -> None:
    with ApiProxy.serving(lab.server) as proxy:
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceprofiles.paceline.dev"
        definition = lab.api.call("GET", crd)
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        known = schema["properties"]["status"]["properties"].pop("endpoint")
        lab.api.call("PUT", crd, definition)
        try:
            with lab.operator(access=proxy.kubeconfig(tmp_path / "kubeconfig")) as operator:
                lab.serve()
                assert lab.wait(lambda: "endpoint" not in lab.status(), "pruned", seconds=60)
                lab.wait(lambda: operator.is_idle, "idle")
                proxy.requests.clear()
                # Ten more passes change nothing and so write nothing.
                for _ in range(10):
                    operator.pass_again()
                    lab.wait(lambda: operator.is_idle, "idle")
                assert [request for request in proxy.requests if request[0] != "GET"] == []
        finally:
            definition = lab.api.call("GET", crd)
            schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            schema["properties"]["status"]["properties"]["endpoint"] = known
            lab.api.call("PUT", crd, definition)


def test_a_hanging_api_server_is_got_over(lab: Lab) -> None:
    with lab.operator(requestSeconds=2, watch=QUICK_WATCH) as operator:
        (pod,) = lab.serve()
        with lab.server.paused():
            client = operator.client
            assert client is not None
            lab.wait(lambda: client.failures > 3, "calls time out", seconds=60)
        lab.change("web", interval(7))
        lab.wait(lambda: pod.engine.settings.pacing.interval == 7, "the change arrives", seconds=60)
