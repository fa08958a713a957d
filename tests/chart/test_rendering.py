"""What the chart becomes, without a cluster: each value does what it says, and a wrong one is named."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendered import CI_VALUES, NAMESPACE, Manifest, of, one, render
from cluster import ClusterError, monitoringkinds
from cluster.fixtures import CRD
from cluster.helm import CHART, Helm
from operatorbed import account
from resnetboost_operator import names

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_every_way_to_install_it_is_clean(offline_helm: Helm, values: Path) -> None:
    assert "0 chart(s) failed" in offline_helm("lint", "--strict", CHART, f"--values={values}")
    labels = [found["metadata"]["labels"] for found in render(offline_helm, f"--values={values}")]
    assert {found["app.kubernetes.io/instance"] for found in labels} == {"resnetboost"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        pytest.param("replica=2", "additional properties 'replica' not allowed", id="at the top"),
        pytest.param("image.tags=x", "at '/image': additional properties 'tags' not allowed", id="below"),
        pytest.param("trainerImages.NPU=x", "at '/trainerImages': additional properties 'NPU'", id="a type of device"),
        pytest.param("monitoring.podMonitor.enable=true", "additional properties 'enable'", id="deep down"),
        pytest.param("replicas=two", "at '/replicas': got string, want integer", id="a word for a number"),
        pytest.param("watchNamespaces=team", "at '/watchNamespaces': got string, want array", id="one for many"),
        pytest.param("log.level=warn", "at '/log/level': value must be one of", id="an unknown word"),
        pytest.param("image.digest=abc", "at '/image/digest': 'abc' does not match", id="half a digest"),
        pytest.param(
            "podDisruptionBudget.maxUnavailable=0", "minimum: got 0, want 1", id="a budget that blocks drains"
        ),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(offline_helm: Helm, given: str, complaint: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(complaint)):
        render(offline_helm, f"--set={given}")


def test_an_older_kubernetes_is_refused(offline_helm: Helm) -> None:
    with pytest.raises(ClusterError, match=r"incompatible with Kubernetes v1\.28\.0"):
        render(offline_helm, "--kube-version=1.28.0")


def test_the_definition_is_whole_and_kept(offline_helm: Helm) -> None:
    found = one(render(offline_helm), "CustomResourceDefinition")
    assert found["spec"] == yaml.safe_load(CRD.read_text())["spec"]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    given_up = one(render(offline_helm, "--set=crds.keep=false"), "CustomResourceDefinition")
    assert not given_up["metadata"]["annotations"]
    assert not of(render(offline_helm, "--set=crds.enabled=false"), "CustomResourceDefinition")


def test_it_grants_what_is_tested_and_nothing_else(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=rbac.aggregate=false")
    everywhere, in_its_own = account.roles()
    assert by_resource(one(objects, "ClusterRole")) == by_resource(everywhere)
    lease = one(objects, "Role")
    for rule in lease["rules"]:
        assert rule.get("resourceNames", ["resnetboost"]) == ["resnetboost"]  # the lease is named like the release
        rule.update({"resourceNames": [names.MANAGED_BY]} if "resourceNames" in rule else {})
    assert lease["rules"] == in_its_own["rules"]


def by_resource(role: Manifest) -> list[Manifest]:
    return sorted(role["rules"], key=lambda rule: str(rule["resources"]))


def test_in_some_namespaces_it_gets_nothing_elsewhere_but_a_look_at_nodes(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=watchNamespaces={a,b}", "--set=rbac.aggregate=false")
    cluster_wide = one(objects, "ClusterRole")
    assert [rule["resources"] for rule in cluster_wide["rules"]] == [["nodes"]]
    roles = {found["metadata"]["namespace"]: found for found in of(objects, "Role")}
    assert roles.keys() == {"a", "b", NAMESPACE}
    assert all("nodes" not in rule["resources"] for role in roles.values() for rule in role["rules"])
    assert by_resource({"rules": roles["a"]["rules"] + cluster_wide["rules"]}) == by_resource(account.roles()[0])
    for binding in [*of(objects, "RoleBinding"), one(objects, "ClusterRoleBinding")]:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "resnetboost", "namespace": NAMESPACE}]
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
    assert {"--namespace=a", "--namespace=b"} < set(container(objects)["args"])


def container(objects: list[Manifest]) -> Manifest:
    found: Manifest = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def test_operators_of_two_namespaces_share_no_name_outside(offline_helm: Helm) -> None:
    outside = [
        {
            (found["kind"], found["metadata"]["name"])
            for found in render(offline_helm, "--set=watchNamespaces={a}", f"--namespace={place}")
            if "namespace" not in found["metadata"] and found["kind"] != "CustomResourceDefinition"
        }
        for place in ("a", "b")
    ]
    assert outside[0].isdisjoint(outside[1])


def test_a_mirror_is_for_the_trainers_too(offline_helm: Helm) -> None:
    options = ["--set=imageRegistry=registry.example/mirror/", "--set=trainerImages.GPU=elsewhere.example/gpu:1"]
    found = container(render(offline_helm, *options))
    assert re.fullmatch(r"registry\.example/mirror/resnetboost/operator:[0-9.]+", found["image"])
    assert "--image-registry=registry.example/mirror/" in found["args"]
    assert [word for word in found["args"] if "trainer" in word] == ["--trainer-image=GPU=elsewhere.example/gpu:1"]


def test_a_digest_goes_before_the_tag(offline_helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    found = container(render(offline_helm, f"--set=image.digest={digest}", "--set=image.tag=x"))
    assert found["image"] == f"resnetboost/operator@{digest}"


@pytest.mark.parametrize(
    ("replicas", "budgets"), [(1, []), (2, [1])], ids=["one would only block drains", "one of two"]
)
def test_a_budget_never_blocks_a_drain(offline_helm: Helm, replicas: int, budgets: list[int]) -> None:
    objects = render(offline_helm, f"--set=replicas={replicas}")
    assert [found["spec"]["maxUnavailable"] for found in of(objects, "PodDisruptionBudget")] == budgets


@pytest.mark.parametrize("kind", monitoringkinds.KINDS)
def test_monitors_come_where_their_kind_is_or_where_they_are_asked_for(offline_helm: Helm, kind: str) -> None:
    known = f"--api-versions=monitoring.coreos.com/v1/{kind}"
    value = f"monitoring.{kind[0].lower()}{kind[1:]}.enabled"
    assert not of(render(offline_helm), kind)
    assert one(render(offline_helm, known), kind)
    assert one(render(offline_helm, f"--set={value}=true"), kind)
    assert not of(render(offline_helm, known, f"--set={value}=false"), kind)


def test_the_monitor_finds_the_trainers_as_the_operator_makes_them(offline_helm: Helm) -> None:
    spec = one(render(offline_helm, "--set=monitoring.podMonitor.enabled=true"), "PodMonitor")["spec"]
    selector = spec["selector"]["matchLabels"]
    (pod,) = of(yaml.safe_load_all((CHART.parents[1] / "tests/golden/digits.yaml").read_text()), "Pod")[:1]
    assert selector.items() <= pod["metadata"]["labels"].items()
    (port,) = (
        port for port in pod["spec"]["containers"][0]["ports"] if port["name"] == spec["podMetricsEndpoints"][0]["port"]
    )
    assert port["containerPort"] == names.PORT_METRICS
    assert spec["namespaceSelector"] == {"any": True}


def test_the_policy_lets_it_reach_trainers(offline_helm: Helm) -> None:
    egress = one(render(offline_helm, "--set=networkPolicy.enabled=true"), "NetworkPolicy")["spec"]["egress"]
    (to_trainers,) = (rule for rule in egress if {"port": names.PORT_METRICS, "protocol": "TCP"} in rule["ports"])
    (peer,) = to_trainers["to"]
    assert peer["podSelector"]["matchLabels"] == {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    assert peer["namespaceSelector"] == {}


def test_dashboards_and_rules_are_those_of_the_files(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=monitoring.prometheusRule.enabled=true")
    told: dict[str, Any] = {}
    for found in of(objects, "ConfigMap"):
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        told |= found["data"]
    assert told == {path.name: path.read_text().strip() for path in (CHART / "dashboards").glob("*.json")}
    rules = [yaml.safe_load(path.read_text())["groups"] for path in sorted((CHART / "rules").glob("*.yaml"))]
    assert one(objects, "PrometheusRule")["spec"]["groups"] == [group for groups in rules for group in groups]


def test_it_can_be_part_of_another_chart(offline_helm: Helm, tmp_path: Path) -> None:
    dependency = {
        "name": "resnetboost",
        "version": "*",
        "repository": f"file://{CHART}",
        "condition": "resnetboost.enabled",
    }
    (tmp_path / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]})
    )
    (tmp_path / "values.yaml").write_text("global: {anything: true}\nresnetboost: {enabled: true, replicas: 2}\n")
    offline_helm("dependency", "update", tmp_path)
    objects = render(offline_helm, chart=tmp_path, release="platform")
    assert one(objects, "Deployment")["metadata"]["name"] == "platform-resnetboost"


def test_a_constraint_without_selector_means_the_operator(offline_helm: Helm) -> None:
    deployment = one(render(offline_helm, f"--values={CHART}/ci/replicas-values.yaml"), "Deployment")
    (constraint,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"] == deployment["spec"]["selector"]
