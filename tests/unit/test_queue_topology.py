"""Topology-aware scheduling by Kueue: what a job asks for, and on which node each rank is put."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_operator.observed.capabilities import KUBERNETES_1_37, Capabilities
from resnetboost_operator.scheduling.kueue import topology
from support.examples import examples
from support.simulation import Cluster, job

RACK = "example.com/rack"
HOST = "kubernetes.io/hostname"
CONSTRAINTS: dict[str, Any] = {"schedulingConstraints": {"topology": [{"key": RACK}]}}
BLOCKS = {
    "levels": ["example.com/block", RACK],
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"universal": "block-1"}, {"individual": {"prefix": "rack-", "roots": ["1", "2"]}}],
            "podCounts": {"individual": [2, 1]},
        },
        {
            "domainCount": 1,
            "valuesPerLevel": [{"individual": {"roots": ["block-2"]}}, {"universal": "rack-9"}],
            "podCounts": {"universal": 1},
        },
    ],
}


def hosts(*names: str, pods: int = 1) -> dict[str, Any]:
    """The assignment of that many pods to each of the hosts."""
    part = {
        "domainCount": len(names),
        "valuesPerLevel": [{"individual": {"roots": list(names)}}],
        "podCounts": {"universal": pods},
    }
    return {"levels": [HOST], "slices": [part]}


def queued(count: int = 2, per_node: int | None = None, **scheduling: Any) -> Cluster:
    device = {"type": "CPU", "count": count} | ({"perNode": per_node} if per_node else {})
    cluster = Cluster(replace(job(device=device, scheduling=scheduling), queue="team-a"))
    cluster.capabilities = Capabilities(kueue=True, kueue_enabled=True)
    cluster.settle()
    return cluster


def asked(cluster: Cluster) -> dict[str, Any]:
    assert cluster.kueue.workload is not None
    found: dict[str, Any] = cluster.kueue.workload["spec"]["podSets"][0].get("topologyRequest", {})
    return found


def admitted(cluster: Cluster, assignment: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The pods by rank."""
    topologies = {"topologyAssignment": assignment} if assignment else {}
    cluster.kueue.admit(flavors={}, **topologies)
    cluster.settle()
    return [cluster.rank(index) for index in range(len(cluster.pods))]


def test_each_index_gets_the_labels_of_its_domain_in_order() -> None:
    found = topology.node_selectors(BLOCKS)
    assert [(found[index]["example.com/block"], found[index][RACK]) for index in sorted(found)] == [
        ("block-1", "rack-1"),
        ("block-1", "rack-1"),
        ("block-1", "rack-2"),
        ("block-2", "rack-9"),
    ]


def test_a_suffix_is_put_behind_each_root() -> None:
    individual = {"prefix": "n", "roots": ["1", "22"], "suffix": ".example"}
    part = {"domainCount": 2, "valuesPerLevel": [{"individual": individual}], "podCounts": {"universal": 1}}
    found = topology.node_selectors({"levels": [HOST], "slices": [part]})
    assert found == {0: {HOST: "n1.example"}, 1: {HOST: "n22.example"}}


@examples(100)
@given(st.lists(st.tuples(st.text("ab1-", max_size=5), st.integers(1, 4)), min_size=1, max_size=12), st.data())
def test_however_an_assignment_is_compressed_it_is_the_same(
    domains: list[tuple[str, int]], data: st.DataObject
) -> None:
    expected = [name for name, pods in domains for _ in range(pods)]
    cut = data.draw(st.integers(0, len(domains)))
    slices = [compressed(part, data) for part in (domains[:cut], domains[cut:]) if part]
    found = topology.node_selectors({"levels": [HOST], "slices": slices})
    assert [found[index][HOST] for index in range(len(found))] == expected


def compressed(domains: list[tuple[str, int]], data: st.DataObject) -> dict[str, Any]:
    """A slice in one of the forms that Kueue may choose."""
    names, counts = [name for name, _ in domains], [pods for _, pods in domains]
    start = data.draw(st.integers(0, min(map(len, names)))) if len({*names}) == 1 else 0
    values: dict[str, Any] = {"individual": {"prefix": names[0][:start], "roots": [name[start:] for name in names]}}
    if len({*names}) == 1 and data.draw(st.booleans()):
        values = {"universal": names[0]}
    pods: dict[str, Any] = {"universal": counts[0]} if len({*counts}) == 1 else {"individual": counts}
    return {"domainCount": len(domains), "valuesPerLevel": [values], "podCounts": pods}


def test_a_job_asks_for_one_value_of_its_label_and_names_the_label_of_the_index() -> None:
    assert asked(queued(**CONSTRAINTS)) == {"required": RACK, "podIndexLabel": "resnetboost.io/index"}
    assert asked(queued()) == {}


def test_devices_that_share_a_node_are_asked_for_as_slices_of_a_host() -> None:
    found = asked(queued(4, per_node=2, **CONSTRAINTS))
    assert (found["podSetSliceRequiredTopology"], found["podSetSliceSize"]) == (HOST, 2)


def test_each_rank_gets_its_node_and_no_affinity_of_ours_beside_it() -> None:
    pods = admitted(queued(4, **CONSTRAINTS), hosts("a", "b", pods=2))
    assert [pod["spec"]["nodeSelector"][HOST] for pod in pods] == ["a", "a", "b", "b"]
    assert all("affinity" not in pod["spec"] for pod in pods)
    annotations = pods[0]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == RACK
    assert annotations["kueue.x-k8s.io/workload"].startswith("resnetboostjob-digits-")


def test_slices_are_annotated_too() -> None:
    annotations = admitted(queued(2, per_node=2, **CONSTRAINTS), hosts("a", pods=2))[0]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-slice-required-topology"] == HOST
    assert annotations["kueue.x-k8s.io/podset-slice-size"] == "2"


def test_a_topology_that_only_the_queue_wants_is_annotated_as_unconstrained() -> None:
    annotations = admitted(queued(), hosts("a", pods=2))[0]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


def test_a_queue_without_topology_leaves_the_constraint_to_the_scheduler() -> None:
    affinity = admitted(queued(**CONSTRAINTS), None)[0]["spec"]["affinity"]["podAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in terms] == [RACK]


def test_a_queue_and_a_gang_scheduler_both_have_their_say() -> None:
    cluster = queued(**CONSTRAINTS)
    cluster.capabilities = replace(cluster.capabilities, gangs_enabled=True, pod_groups=frozenset({KUBERNETES_1_37}))
    pod = admitted(cluster, hosts("a", pods=2))[0]
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "digits-base-0"}
    assert pod["spec"]["nodeSelector"] == {HOST: "a"}


def test_after_another_admission_the_ranks_go_to_the_new_nodes() -> None:
    cluster = queued(**CONSTRAINTS)
    admitted(cluster, hosts("a", pods=2))
    cluster.kueue.evict()
    cluster.settle()
    pods = admitted(cluster, hosts("b", pods=2))
    assert {pod["spec"]["nodeSelector"][HOST] for pod in pods} == {"b"}
