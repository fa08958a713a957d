"""Fixtures: operators under the chart's role, a namespace and a kubelet per test, and MindSpore's two modes."""

from collections.abc import Generator, Iterator

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, Kubelet, Operator, Proxy, Space, devices
from beds.operator.gangs import Gangs
from beds.operator.service_account import GANG_RULES, KUEUE_RULES
from beds.queue import KUEUE, kinds, served
from beds.queue.decisions import FLAVOR

NODES = ("node-0", "node-1")


@pytest.fixture(params=["graph", "operator by operator"])
def any_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test in each of MindSpore's modes; PyNative is the default of user scripts."""
    import mindspore  # imported here, so that tests without it need not wait for it

    mindspore.set_context(mode=mindspore.GRAPH_MODE if request.param == "graph" else mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.fixture(scope="session")
def account(control_plane: ControlPlane) -> Account:
    """The operator's account, with the chart's role, in a cluster with room for pods."""
    for name in NODES:
        control_plane.add_node(name)
    devices.add_nodes(control_plane)
    return Account(control_plane)


@pytest.fixture(scope="module")
def kueue_installed(control_plane: ControlPlane, account: Account) -> Iterator[None]:
    """Kueue's kinds in the cluster, a flavor, and the rights that the operator needs for them."""
    with served(control_plane, KUEUE):
        kinds.add_flavor(control_plane, FLAVOR)
        account.allow(KUEUE_RULES)
        yield
        account.deny(KUEUE_RULES)


@pytest.fixture(scope="module")
def operator_options() -> list[str]:
    """Options of a module's operator; a module that needs some has a fixture of this name."""
    return []


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, account: Account, operator_options: list[str]) -> Iterator[Operator]:
    """One operator for all namespaces, shared by the tests of a module."""
    operator = Operator(control_plane, account.kubeconfig, options=operator_options)
    operator.start()
    yield operator
    assert operator.terminate() == 0, "the operator did not end well"


@pytest.fixture
def space(control_plane: ControlPlane, account: Account, namespace: str) -> Iterator[Space]:
    """A fresh namespace."""
    space = Space(control_plane, namespace)
    yield space
    space.clear()


@pytest.fixture
def kubelet(control_plane: ControlPlane, space: Space) -> Iterator[Kubelet]:
    """A fake kubelet for the pods of the test's namespace."""
    with Kubelet(control_plane, space.namespace) as kubelet:
        yield kubelet


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy before the API server that can inject failures."""
    with Proxy(control_plane.url, control_plane.ca) as proxy:
        yield proxy


@pytest.fixture
def operator_behind_proxy(
    control_plane: ControlPlane, account: Account, space: Space, proxy: Proxy
) -> Iterator[Operator]:
    """An operator for the test's namespace alone, behind the test's proxy."""
    account.allow_lease(space.namespace)
    operator = Operator(
        control_plane,
        account.kubeconfig_via(proxy.url, space.namespace),
        f"operator-{space.namespace}",
        namespace=space.namespace,
        lease_namespace=space.namespace,
        forked=True,
    )
    operator.start()
    yield operator
    operator.kill()


@pytest.fixture(scope="session")
def gang_account(gang_cluster: ControlPlane) -> Account:
    """The operator's account, with the chart's roles for PodGroups too, in the cluster with a gang scheduler."""
    account = Account(gang_cluster)
    account.allow(GANG_RULES)
    return account


@pytest.fixture(scope="module")
def gang_operator(gang_cluster: ControlPlane, gang_account: Account) -> Iterator[Operator]:
    """One operator for that cluster, which creates PodGroups."""
    operator = Operator(gang_cluster, gang_account.kubeconfig, "gang-operator", options=["--gang-scheduling"])
    operator.start()
    yield operator
    assert operator.terminate() == 0, "the operator did not end well"


@pytest.fixture
def gangs(gang_cluster: ControlPlane, gang_namespace: str, gang_operator: Operator) -> Iterator[Gangs]:
    """Jobs in a fresh namespace of that cluster, for that operator."""
    gangs = Gangs(gang_cluster, gang_namespace)
    yield gangs
    gangs.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the operators' logs to a failure report."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for value in item.funcargs.values():
            for operator in value if isinstance(value, list) else [value]:
                if isinstance(operator, Operator):
                    report.sections.append((f"log of {operator.name}", operator.log_tail()))
    return report
