"""Rendering the chart without a cluster: each value has its effect, and invalid values are refused by name."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.cluster import ClusterError, monitoringkinds
from beds.cluster.fixtures import CRD
from beds.cluster.helm import CHART, Helm
from beds.operator import service_account
from chart.rendered import CI_VALUES, NAMESPACE, Manifest, of, one, render
from resnetboost_api import names
from resnetboost_operator.controller.options import KEY_BYTES

pytestmark = pytest.mark.slow

NEARER = ("podLabels", "monitoring.labels", "dashboards.labels")


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
        pytest.param("podDisruptionBudget.maxUnavailable=0%", "'0%' does not match", id="the same as a share"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(offline_helm: Helm, given: str, complaint: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(complaint)):
        render(offline_helm, f"--set={given}")


def test_an_older_kubernetes_is_refused(offline_helm: Helm) -> None:
    with pytest.raises(ClusterError, match=r"incompatible with Kubernetes v1\.28\.0"):
        render(offline_helm, "--kube-version=1.28.0")


def test_the_crd_is_complete_and_kept(offline_helm: Helm) -> None:
    found = one(render(offline_helm), "CustomResourceDefinition")
    assert found["spec"] == yaml.safe_load(CRD.read_text())["spec"]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    given_up = one(render(offline_helm, "--set=crds.keep=false"), "CustomResourceDefinition")
    assert not given_up["metadata"]["annotations"]
    assert not of(render(offline_helm, "--set=crds.enabled=false"), "CustomResourceDefinition")


WITHOUT_OPTIONS = ("--set=rbac.aggregate=false", "--set=gangScheduling.enabled=false")


def test_it_grants_what_is_tested_and_nothing_else(offline_helm: Helm) -> None:
    objects = render(offline_helm, *WITHOUT_OPTIONS)
    everywhere, in_its_own = service_account.roles()
    assert by_resource(one(objects, "ClusterRole")) == by_resource(everywhere)
    lease = one(objects, "Role")
    for rule in lease["rules"]:
        assert rule.get("resourceNames", ["resnetboost"]) == ["resnetboost"]  # the lease is named like the release
        rule.update({"resourceNames": [names.MANAGED_BY]} if "resourceNames" in rule else {})
    assert lease["rules"] == in_its_own["rules"]


def by_resource(*roles: Manifest) -> list[Manifest]:
    return sorted((rule for role in roles for rule in role["rules"]), key=lambda rule: str(rule["resources"]))


def test_in_some_namespaces_it_gets_nothing_elsewhere_but_a_look_at_nodes(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=watchNamespaces={a,b}", *WITHOUT_OPTIONS)
    cluster_wide = one(objects, "ClusterRole")
    assert [rule["resources"] for rule in cluster_wide["rules"]] == [["nodes"]]
    roles = {found["metadata"]["namespace"]: found for found in of(objects, "Role")}
    assert roles.keys() == {"a", "b", NAMESPACE}
    assert all("nodes" not in rule["resources"] for role in roles.values() for rule in role["rules"])
    assert by_resource({"rules": roles["a"]["rules"] + cluster_wide["rules"]}) == by_resource(
        service_account.roles()[0]
    )
    for binding in [*of(objects, "RoleBinding"), one(objects, "ClusterRoleBinding")]:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "resnetboost", "namespace": NAMESPACE}]
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
    assert {"--namespace=a", "--namespace=b"} < set(container(objects)["args"])


@pytest.mark.parametrize(
    ("values", "rules", "option"),
    [
        ({}, [service_account.GANG_RULES], "--gang-scheduling"),
        ({"gangScheduling.enabled": "false"}, [], ""),
        (
            {"gangScheduling.enabled": "false", "kueue.enabled": "true"},
            [service_account.KUEUE_RULES],
            "--kueue",
        ),
        (
            {"gangScheduling.enabled": "false", "nodeExclusion.taint": "NoSchedule"},
            [service_account.TAINT_RULES],
            "--taint-nodes=NoSchedule",
        ),
    ],
    ids=["by default", "without gangs", "with queues", "with taints"],
)
@pytest.mark.parametrize("namespaces", ["[]", '["a"]'], ids=["everywhere", "in a namespace"])
def test_an_option_and_its_rights_come_by_the_same_value(
    offline_helm: Helm, namespaces: str, values: dict[str, str], rules: list[Path], option: str
) -> None:
    given = [f"--set={key}={value}" for key, value in values.items()]
    objects = render(offline_helm, WITHOUT_OPTIONS[0], f"--set-json=watchNamespaces={namespaces}", *given)
    (everywhere, _), optional = (
        service_account.roles(),
        [role for path in rules for role in service_account.roles(path)],
    )
    granted = [*of(objects, "ClusterRole"), *(role for role in of(objects, "Role") if "lease" not in name(role))]
    assert by_resource(*granted) == by_resource(everywhere, *optional)
    args = container(objects)["args"]
    assert [word for word in args if word.startswith(("--kueue", "--gang-scheduling", "--taint"))] == (
        [option] if option else []
    )
    of_the_cluster = {resource for rule in of(objects, "ClusterRole")[0]["rules"] for resource in rule["resources"]}
    assert ("workloads" in of_the_cluster or "podgroups" in of_the_cluster) == (
        namespaces == "[]" and bool(rules) and rules != [service_account.TAINT_RULES]
    )


def name(found: Manifest) -> str:
    return str(found["metadata"]["name"])


def test_kueue_may_look_at_jobs_where_somebody_says_so(offline_helm: Helm) -> None:
    assert not [role for role in of(render(offline_helm, "--set=kueue.enabled=true"), "ClusterRole") if is_kueues(role)]
    objects = render(offline_helm, "--set=kueue.externalFramework.enabled=true", "--set=watchNamespaces={a}")
    (role,) = filter(is_kueues, of(objects, "ClusterRole"))
    assert role["rules"] == [
        {"apiGroups": ["resnetboost.io"], "resources": ["resnetboostjobs"], "verbs": ["get", "list", "watch"]}
    ]
    (binding,) = filter(is_kueues, of(objects, "ClusterRoleBinding"))
    assert binding["roleRef"]["name"] == name(role)
    (subject,) = binding["subjects"]
    assert (subject["namespace"], subject["name"]) == ("kueue-system", "kueue-controller-manager")


def is_kueues(found: Manifest) -> bool:
    return name(found).endswith("-kueue")


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


def test_a_registry_mirror_applies_to_trainer_images(offline_helm: Helm) -> None:
    options = ["--set=imageRegistry=registry.example/mirror/", "--set=trainerImages.GPU=elsewhere.example/gpu:1"]
    found = container(render(offline_helm, *options))
    assert re.fullmatch(r"registry\.example/mirror/resnetboost/operator:[0-9.]+", found["image"])
    assert "--image-registry=registry.example/mirror/" in found["args"]
    assert [word for word in found["args"] if "trainer" in word] == ["--trainer-image=GPU=elsewhere.example/gpu:1"]


def test_a_digest_precedes_the_tag(offline_helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    found = container(render(offline_helm, f"--set=image.digest={digest}", "--set=image.tag=x"))
    assert found["image"] == f"resnetboost/operator@{digest}"


@pytest.mark.parametrize(
    ("replicas", "budgets"), [(1, []), (2, [1])], ids=["one would only block drains", "one of two"]
)
def test_a_budget_never_blocks_a_drain(offline_helm: Helm, replicas: int, budgets: list[int]) -> None:
    found = [budget["spec"] for budget in of(render(offline_helm, f"--set=replicas={replicas}"), "PodDisruptionBudget")]
    assert [spec["maxUnavailable"] for spec in found] == budgets
    assert all(spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for spec in found), "none of them is ready"


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


def test_the_operator_reads_the_key_of_the_launchers_from_a_secret_of_the_chart(offline_helm: Helm) -> None:
    objects = render(offline_helm)
    secret, spec = one(objects, "Secret"), one(objects, "Deployment")["spec"]["template"]["spec"]
    assert len(base64.b64decode(secret["data"]["key"])) >= KEY_BYTES
    mount = next(one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "launcher-key")
    assert f"--token-key-file={mount['mountPath']}/key" in spec["containers"][0]["args"]
    assert {"name": "launcher-key", "secret": {"secretName": secret["metadata"]["name"]}} in spec["volumes"]


def test_a_secret_of_ones_own_takes_the_place_of_the_charts(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=launchers.keySecret=mine")
    assert of(objects, "Secret") == []
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "launcher-key", "secret": {"secretName": "mine"}} in volumes


def test_dashboards_and_rules_are_those_of_the_files(offline_helm: Helm) -> None:
    objects = render(offline_helm, "--set=monitoring.prometheusRule.enabled=true")
    told: dict[str, Any] = {}
    for found in of(objects, "ConfigMap"):
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        told |= found["data"]
    ours = {f"resnetboost-{path.name}": path.read_text().strip() for path in (CHART / "dashboards").glob("*.json")}
    assert told == ours, "Grafana's sidecar puts the files of all charts into one folder"
    found = {group["name"]: group for group in groups(objects)}
    for path in (CHART / "rules").glob("*.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            told_of = found.pop(group["name"])
            assert told_of == group or path.stem == "operator"
    assert not found


def groups(objects: list[Manifest]) -> list[Manifest]:
    found: list[Manifest] = one(objects, "PrometheusRule")["spec"]["groups"]
    return found


@pytest.mark.parametrize(
    "service",
    [',service="blue-resnetboost"', ""],
    ids=["by its ServiceMonitor", "without the label of a ServiceMonitor"],
)
def test_each_releases_rules_select_its_own_operator(offline_helm: Helm, service: str) -> None:
    options = ["--set=monitoring.prometheusRule.enabled=true", "--set=monitoring.prometheusRule.jobs=false"]
    options.append(f"--set=monitoring.serviceMonitor.enabled={str(bool(service)).lower()}")
    (group,) = groups(render(offline_helm, *options, release="blue"))
    (plain,) = yaml.safe_load((CHART / "rules/operator.yaml").read_text())["groups"]
    own = f'{{namespace="{NAMESPACE}"{service}}}'
    for rule, as_it_was in zip(group["rules"], plain["rules"], strict=True):
        series = re.findall(r"resnetboost_operator_\w+", as_it_was["expr"])
        assert series
        assert re.findall(r"resnetboost_operator_\w+(\{.*?\})", rule["expr"]) == [own] * len(series)
        assert rule | {"expr": rule["expr"].replace(own, "")} == as_it_was


def test_the_operators_service_is_the_one_its_rules_ask(offline_helm: Helm) -> None:
    monitored = [f"--set=monitoring.{kind}.enabled=true" for kind in ("prometheusRule", "serviceMonitor")]
    objects = render(offline_helm, *monitored, "--set=fullnameOverride=x")
    name = one(objects, "Service")["metadata"]["name"]
    exprs = [rule["expr"] for group in groups(objects) for rule in group["rules"]]
    assert f'absent(resnetboost_operator_leading{{namespace="{NAMESPACE}",service="{name}"}} == 1)' in exprs


def test_how_long_a_job_may_wait_in_a_queue_can_be_set(offline_helm: Helm) -> None:
    options = ["--set=monitoring.prometheusRule.enabled=true", "--set=monitoring.prometheusRule.queuedSeconds=7200"]
    rules = [rule for group in groups(render(offline_helm, *options)) for rule in group["rules"]]
    (long,) = (rule["expr"] for rule in rules if rule.get("alert") == "ResNetBoostJobQueuedLong")
    assert long.endswith(" > 7200")


def test_runbooks_have_an_address_where_one_is_given(offline_helm: Helm) -> None:
    options = ["--set=monitoring.prometheusRule.enabled=true", "--set=monitoring.prometheusRule.runbookBase="]
    base = "https://git.example/resnetboost/blob/main/"
    for given, key, start in (("", "runbook", ""), (base, "runbook_url", base)):
        found = groups(render(offline_helm, *options[:1], options[1] + given))
        alerts = [rule for group in found for rule in group["rules"] if "alert" in rule]
        assert {rule["annotations"][key] for rule in alerts} == {
            f"{start}docs/monitoring.md#{rule['alert'].lower()}" for rule in alerts
        }


def test_of_duplicate_labels_the_more_specific_and_the_charts_own_win(offline_helm: Helm) -> None:
    given = "{a: common, b: common, app.kubernetes.io/name: theirs}"
    nearer = "{b: nearer, app.kubernetes.io/instance: theirs}"
    monitored = [f"--set=monitoring.{kind}.enabled=true" for kind in ("serviceMonitor", "podMonitor", "prometheusRule")]
    options = [f"--set-json={key}={json.dumps(yaml.safe_load(nearer))}" for key in NEARER]
    objects = render(offline_helm, *monitored, *options, f"--set-json=commonLabels={json.dumps(yaml.safe_load(given))}")
    pods = one(objects, "Deployment")["spec"]["template"]
    labelled = [pods, *of(objects, "ConfigMap"), *(one(objects, kind) for kind in monitoringkinds.KINDS)]
    for labels in (found["metadata"]["labels"] for found in labelled):
        assert (labels["a"], labels["b"]) == ("common", "nearer")
        assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/instance"] == "resnetboost"


def test_names_that_look_like_numbers_are_quoted(offline_helm: Helm) -> None:
    options = ['--set-json=watchNamespaces=["123"]', "--set-string=fullnameOverride=456", "--namespace=789"]
    objects = render(offline_helm, *options, release="321")
    for found in objects:
        metadata = found["metadata"]
        assert {type(value) for value in (metadata["name"], *metadata["labels"].values())} == {str}
        assert metadata.get("namespace", "789") in ("123", "789")
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "456"
    for binding in [*of(objects, "RoleBinding"), one(objects, "ClusterRoleBinding")]:
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "456", "namespace": "789"}]


def test_the_network_policy_allows_extra_egress(offline_helm: Helm) -> None:
    rule = {"ports": [{"port": 3128, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}
    options = ["--set=networkPolicy.enabled=true", f"--set-json=networkPolicy.extraEgress={json.dumps([rule])}"]
    without = one(render(offline_helm, options[0]), "NetworkPolicy")["spec"]["egress"]
    assert one(render(offline_helm, *options), "NetworkPolicy")["spec"]["egress"] == [*without, rule]


def test_it_works_as_a_subchart(offline_helm: Helm, tmp_path: Path) -> None:
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


def test_a_topology_constraint_without_selector_selects_the_operator(offline_helm: Helm) -> None:
    deployment = one(render(offline_helm, f"--values={CHART}/ci/replicas-values.yaml"), "Deployment")
    (constraint,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"] == deployment["spec"]["selector"]


def test_a_topology_constraint_keeps_its_own_selector(offline_helm: Helm) -> None:
    selector = {"matchLabels": {"tier": "control"}}
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    option = f"--set-json=topologySpreadConstraints={json.dumps([constraint])}"
    deployment = one(render(offline_helm, option), "Deployment")
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] == [constraint]
