"""Jobs that require a gang scheduler in a cluster without one: nothing starts, and the condition says what to do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, Kubelet, Operator, Space
from beds.operator.jobs import job
from beds.operator.namespace import condition

pytestmark = pytest.mark.slow

Start = Callable[..., None]


@pytest.fixture
def start(control_plane: ControlPlane, account: Account, space: Space) -> Iterator[Start]:
    """Starts an operator with these options for the test's namespace alone."""
    account.allow_lease(space.namespace)
    operators: list[Operator] = []

    def started(*options: str) -> None:
        operators.append(
            Operator(
                control_plane,
                account.kubeconfig,
                f"operator-{space.namespace}",
                namespace=space.namespace,
                lease_namespace=space.namespace,
                options=options,
            )
        )
        operators[0].start()

    yield started
    for operator in operators:
        operator.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "the operator runs without --gang-scheduling; set gangScheduling.enabled of its chart"),
        (["--gang-scheduling"], "the cluster does not serve scheduling.k8s.io/v1beta1"),
    ],
    ids=["without the option", "without the API"],
)
def test_a_required_gang_starts_nothing_and_others_run_as_ever(
    space: Space, kubelet: Kubelet, start: Start, options: list[str], words: str
) -> None:
    start(*options)
    space.create(job("required", scheduling={"schedulingPolicy": {"gang": {}}}))
    status = space.until(lambda found: condition(found, "Running"), "it says why", "required")
    running = condition(status, "Running")
    assert (status["phase"], running["reason"]) == ("Pending", "NoGangScheduler")
    assert words in running["message"]
    others: dict[str, Any] = {"left-out": {}, "basic": {"schedulingPolicy": {"basic": {}}}}
    for name, scheduling in others.items():
        space.create(job(name, scheduling=scheduling))
        space.until_started(job=name)
    assert not [pod for pod in space.pods() if pod["metadata"]["name"].startswith("required")]
