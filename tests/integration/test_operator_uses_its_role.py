"""The chart's role has neither missing nor unused rights; runs last, because it checks the requests of all tests."""

from collections.abc import Iterator

import pytest

from beds.cluster import ControlPlane, Request
from beds.operator import Account, Kubelet, Operator, Space, service_account
from beds.operator.devices import DevicePlugin
from beds.operator.jobs import job
from beds.operator.namespace import JOB, condition, is_true

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

Right = tuple[str, str, str]


def granted() -> Iterator[Right]:
    for role in service_account.roles():
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield group, resource, verb


def test_the_role_is_neither_too_large_nor_too_small(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, operator: Operator
) -> None:
    live_fully(space, kubelet)
    space.until_gone(JOB, "digits")
    meet_by_a_rank_table(space)
    operator.kill()
    operator.start()  # it finds its existing lease
    requests = list(control_plane.requests(Account.user))
    used = {right(found) for found in requests if found.code < 300}
    assert set(granted()) - used == set(), "the chart's files/rbac.yaml grants what nobody needs"
    # An API server that is starting refuses everything with the same code, and so does a quota for creations.
    refused = {right(found) for found in requests if found.code == 403}
    assert refused - used == set(), "the chart's files/rbac.yaml lacks these"


def right(request: Request) -> Right:
    return request.group, request.resource, request.verb


def live_fully(space: Space, kubelet: Kubelet) -> None:
    """A restart with all names taken, a failure that leaves one pod to delete, and a time to live."""
    container = {"name": "theirs", "image": "theirs"}
    service = {"clusterIP": "None", "selector": {"app": "theirs"}}
    space.create({"kind": "Service", "metadata": {"name": "digits-base-1"}, "spec": service})
    space.create({"kind": "Pod", "metadata": {"name": "digits-base-1-0"}, "spec": {"containers": [container]}})
    space.create(job(runPolicy={"ttlSecondsAfterFinished": 0}))
    space.until_started()
    config_map = space.config_map(1)
    space.create({"kind": "ConfigMap", "metadata": {"name": config_map}})
    kubelet.exit("digits-base-0-1", 137)
    for kind, plural, name in (
        ("ConfigMap", "configmaps", config_map),
        ("Service", "services", "digits-base-1"),
        ("Pod", "pods", "digits-base-1-0"),
    ):
        until_in_the_way(space, f"{kind} {name} exists and is not this job's")
        space.delete(plural, name)
    space.until_started(attempt=1)
    kubelet.exit("digits-base-1-0", 10)


def meet_by_a_rank_table(space: Space) -> None:
    space.create(job("ascend", device={"type": "Ascend", "count": 2}))
    space.until_started(job="ascend")
    plugin = DevicePlugin(space.plane, space.namespace)
    for pod in space.pods():
        plugin.allocate(pod)
    space.until(lambda status: is_true(status, "RankTableReady"), "the rank table is published", "ascend")


def until_in_the_way(space: Space, words: str) -> None:
    space.until(lambda status: words in condition(status, "Running")["message"], words)
