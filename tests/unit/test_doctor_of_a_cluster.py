"""The doctor's checks of a cluster: every finding, by what a cluster could answer."""

import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from resnetboost_api import crd, names
from resnetboost_api.findings import Finding
from resnetboost_operator import __version__
from resnetboost_operator.cli.doctor.cluster import (
    definition,
    facts,
    images,
    monitoring,
    nodes,
    operators,
    queues,
    registry,
    rights,
    server,
    storage,
)
from resnetboost_operator.cli.doctor.cluster.facts import MONITORING, OPTIONAL_APIS, VERBS, Facts, Unknown
from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.manifests import devices
from resnetboost_operator.observed import capabilities

NOW = time.time()
ASCEND, GPU = "huawei.com/Ascend910", "nvidia.com/gpu"
TRAINER = devices.TYPES["CPU"].image


def schema(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, Any]:
    """The OpenAPI document of a server with our definition."""
    found = copy.deepcopy(crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    change(found["properties"]["spec"]["properties"])
    kind = [{"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}]
    other = {"x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "DeleteOptions"}]}
    return {"components": {"schemas": {"a": other, "b": {**found, "x-kubernetes-group-version-kind": kind}}}}


def lease(seconds_ago: float = 1.0, holder: str = "operator-1") -> Lease:
    return Lease(holder, 15.0, renew_time=leases.timestamp(NOW - seconds_ago))


def deployment(*arguments: str, version: str = __version__, ready: int = 1, replicas: int = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "resnetboost",
            "namespace": "resnetboost-system",
            "labels": {"app.kubernetes.io/version": version, "helm.sh/chart": "resnetboost-0.1.0"},
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"args": ["python", *arguments]}]}}},
        "status": {"readyReplicas": ready},
    }


def node(
    name: str = "node-0",
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    image: str = f"docker.io/{TRAINER}",
    healthy: int | None = None,
    cordoned: bool = False,
    **resources: int,
) -> dict[str, Any]:
    """A node; `resources` are its devices (ascend, gpu), of which `healthy` can be given to pods."""
    have = {{"ascend": ASCEND, "gpu": GPU}[key]: str(count) for key, count in resources.items()}
    give = have if healthy is None else dict.fromkeys(have, str(healthy))
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"unschedulable": cordoned},
        "status": {
            "capacity": {"cpu": "8", **have},
            "allocatable": {"cpu": "7500m", **give},
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "images": [{"names": [image]}],
        },
    }


def cluster(*served: str, **changes: Any) -> Facts:
    """A cluster in which all is well, but for the changes."""
    default = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    fine: dict[str, Any] = {
        "namespace": "team-a",
        "has_namespace": True,
        "version": {"gitVersion": "v1.34.2"},
        "now": NOW,
        "schema": schema(),
        "leases": [lease()],
        "operators": [deployment()],
        "rights": dict.fromkeys(VERBS, True),
        "nodes": [node(gpu=8, image=TRAINER)],
        "served": {api: api in (MONITORING, *served) for api in OPTIONAL_APIS},
        "local_queues": [],
        "storage_classes": [default],
    }
    return Facts(**{**fine, **changes})


def levels(found: Iterable[Finding]) -> list[str]:
    listed = list(found)
    for one in listed:
        assert one.message and (one.level == "ok") == (one.remedy == ""), one
    return [one.level for one in listed]


def words(found: Iterable[Finding]) -> str:
    return " | ".join(f"{one.message}; {one.remedy}" for one in found)


@pytest.mark.parametrize(
    ("version", "expected"), [("v1.34.2", "ok"), ("v1.29.0+k3s1", "ok"), ("v1.28.9", "problem"), ("", "warning")]
)
def test_server(version: str, expected: str) -> None:
    assert levels(server.check(cluster(version={"gitVersion": version}))) == [expected]


def test_the_same_fields() -> None:
    assert levels(definition.check(cluster())) == ["ok"]


def test_an_older_definition_lacks_fields_and_names_the_outermost() -> None:
    found = list(definition.check(cluster(schema=schema(lambda spec: spec.pop("preflight")))))
    assert levels(found) == ["problem"] and "lacks spec.preflight of version" in words(found)


def test_a_newer_definition_has_more_fields() -> None:
    newer = schema(lambda spec: spec["stages"]["items"]["properties"].update(sparkle={"type": "string"}))
    found = list(definition.check(cluster(schema=newer)))
    assert levels(found) == ["warning"] and "spec.stages[].sparkle" in words(found)


@pytest.mark.parametrize("missing", [None, {"components": {"schemas": {}}}, {}])
def test_no_definition(missing: Any) -> None:
    assert levels(definition.check(cluster(schema=missing))) == ["problem"]


@pytest.mark.parametrize(
    ("held", "expected", "said"),
    [
        ([lease()], "ok", "operator-1 leads"),
        ([], "problem", "no operator is here"),
        ([lease(holder="")], "problem", "none leads"),
        ([lease(seconds_ago=600)], "problem", "has not renewed its lease for 10:00"),
        ([lease(seconds_ago=-5)], "ok", "leads"),
    ],
)
def test_an_operator_leads(held: list[Lease], expected: str, said: str) -> None:
    found = list(operators.check(cluster(leases=held, operators=[])))
    assert levels(found) == [expected] and said in words(found)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (deployment(), "ok"),
        (deployment(version="0.0.9"), "warning"),
        (deployment(ready=0), "problem"),
        (deployment(ready=1, replicas=2), "warning"),
    ],
)
def test_the_operators_deployment(there: dict[str, Any], expected: str) -> None:
    assert levels(operators.check(cluster(operators=[there]))) == ["ok", expected]


@pytest.mark.parametrize(
    ("of_one", "of_other", "expected", "said"),
    [
        ((), (), "problem", "both serve the jobs of all namespaces"),
        (("--namespace=a", "--namespace=b"), ("--namespace=c",), "", ""),
        (("--namespace=a", "--namespace=b"), ("--namespace=b",), "problem", "the jobs of namespaces b"),
        ((), ("--namespace=c",), "problem", "the jobs of namespaces c"),
    ],
)
def test_two_operators_of_the_same_jobs(
    of_one: tuple[str, ...], of_other: tuple[str, ...], expected: str, said: str
) -> None:
    found = list(operators.check(cluster(operators=[deployment(*of_one), deployment(*of_other)])))
    assert levels(found) == ["ok", "ok", "ok", *([expected] if expected else [])] and said in words(found)


def test_a_namespace_that_is_not_there() -> None:
    found = list(rights.check(cluster(has_namespace=False)))
    assert levels(found) == ["problem"] and "kubectl create namespace team-a" in words(found)


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [((), "ok"), (("delete", "patch"), "warning"), (VERBS, "problem"), (("create",), "problem")],
)
def test_rights(lacking: tuple[str, ...], expected: str) -> None:
    found = list(rights.check(cluster(rights={verb: verb not in lacking for verb in VERBS})))
    assert levels(found) == [expected]
    assert all(verb in words(found) for verb in lacking) and "team-a" in words(found)


def test_nodes_that_are_not_ready_or_cordoned_offer_nothing() -> None:
    found = list(nodes.check(cluster(nodes=[node(ready=False, gpu=8), node("b", cordoned=True, gpu=8)])))
    assert levels(found) == ["problem"] and "0 of 2" in words(found)


def test_nodes_without_devices_run_cpu_jobs() -> None:
    found = list(nodes.check(cluster(nodes=[node()])))
    assert levels(found) == ["ok", "warning"] and "only CPU jobs run" in words(found)


def test_devices_are_counted_and_sick_ones_named() -> None:
    found = list(nodes.check(cluster(nodes=[node("a", gpu=8), node("b", gpu=8, healthy=6)])))
    assert levels(found) == ["ok", "ok", "warning"]
    assert "14 nvidia.com/gpu" in words(found) and "b (2 nvidia.com/gpu)" in words(found)


def test_labels_name_the_chip() -> None:
    labels = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-910b-8"}
    found = list(nodes.check(cluster(nodes=[node("a", ascend=8, labels=labels), node("b", ascend=8)])))
    assert [one.level for one in found if one.check == "chips"] == ["warning", "ok"]
    assert "of b name no chip" in words(found) and "910B on 1 node" in words(found)


@pytest.mark.parametrize(
    ("arguments", "image", "expected", "said"),
    [
        ((), f"docker.io/{TRAINER}", "ok", "on 1 of 1"),
        ((), TRAINER, "ok", "on 1 of 1"),
        ((), "other", "warning", "has no registry; none are published"),
        (("--image-registry=reg.example/m",), TRAINER, "warning", f"reg.example/m/{TRAINER} is on 0 of 1"),
        (("--image-registry=reg.example/m/",), f"reg.example/m/{TRAINER}", "ok", "on 1 of 1"),
        (("--trainer-image=CPU=own:1", "--trainer-image=GPU=other:1"), "docker.io/own:1", "ok", "own:1 is on 1 of 1"),
    ],
)
def test_images(arguments: tuple[str, ...], image: str, expected: str, said: str) -> None:
    found = list(images.check(cluster(nodes=[node(image=image)], operators=[deployment(*arguments)])))
    assert levels(found) == [expected] and said in words(found), found


def test_the_image_of_a_device_matters_where_the_device_is() -> None:
    found = list(images.check(cluster(nodes=[node(), node("b", ascend=8)])))
    assert levels(found) == ["ok", "warning"] and f"{devices.TYPES['Ascend'].image} is on 0 of 1" in words(found)


KUEUE, VOLCANO = capabilities.KUEUE, capabilities.VOLCANO


@pytest.mark.parametrize(
    ("served", "arguments", "queue", "expected"),
    [
        ((), (), "", ["ok", "ok"]),
        ((), ("--gang-scheduling",), "", ["ok", "ok"]),
        ((), ("--kueue", "--gang-scheduling"), "", ["warning", "ok"]),
        ((KUEUE, VOLCANO), ("--kueue", "--gang-scheduling"), "gpus", ["ok", "ok"]),
        ((KUEUE, VOLCANO), ("--kueue", "--gang-scheduling"), "", ["warning", "ok"]),
        ((KUEUE, VOLCANO), (), "gpus", ["warning", "ok", "warning"]),
    ],
)
def test_queues_and_gangs(served: tuple[str, ...], arguments: tuple[str, ...], queue: str, expected: list[str]) -> None:
    there = [{"metadata": {"name": queue}}] if queue else []
    found = cluster(*served, operators=[deployment(*arguments)], local_queues=there)
    assert levels(queues.check(found)) == expected


def test_what_an_unknown_operator_uses_is_not_held_against_it() -> None:
    found = cluster(KUEUE, VOLCANO, operators=Unknown("you may not"), local_queues=[{"metadata": {"name": "gpus"}}])
    assert levels(queues.check(found)) == ["ok", "ok"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [([], "warning"), ([{"metadata": {"name": "slow"}}], "warning")],
    ids=["none", "no default"],
)
def test_storage(classes: list[dict[str, Any]], expected: str) -> None:
    assert levels(storage.check(cluster(storage_classes=classes))) == [expected]
    assert levels(storage.check(cluster())) == ["ok"]


def test_monitoring() -> None:
    assert levels(monitoring.check(cluster())) == ["ok"]
    assert levels(monitoring.check(cluster(served=dict.fromkeys(OPTIONAL_APIS, False)))) == ["warning"]


def test_whatever_may_not_be_read_is_a_warning_with_the_servers_words() -> None:
    readable = [name for name in Facts.__struct_fields__ if name not in ("namespace", "version", "now")]
    found = list(registry.examine(cluster(**dict.fromkeys(readable, Unknown("you may not")))))
    assert {one.level for one in found if one.check != "server"} == {"warning"}
    assert len(found) > len(registry.CHECKS) - 1
    assert all("you may not" in one.message for one in found if one.check != "server")


def test_a_healthy_cluster_has_no_problem() -> None:
    found = list(registry.examine(cluster()))
    assert {one.level for one in found} <= {"ok", "warning"}
    assert facts.name({}) == "?"
