"""Gang schedulers: which one a job gets, the objects it wants, and that every pod of an attempt is in its one group."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.scheduling import Scheduling
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.pod import pod
from resnetboost_operator.observed import capabilities
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.scheduling import min_resources, registry
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler, base_placement
from support.membership import SCHEDULERS, Scheduler
from support.simulation import Cluster, job

EVERYTHING = Capabilities(pod_groups=frozenset(capabilities.POD_GROUP_APIS), gangs_enabled=True)
GANG: dict[str, Any] = {"gang": {}}
BASIC: dict[str, Any] = {"basic": {}}
RACK = {"topology": [{"key": "example.com/rack"}]}


def each(*schedulers: Scheduler) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("known", schedulers, ids=[found.name for found in schedulers])


def scheduling(**fields: Any) -> Scheduling:
    return job(scheduling=fields).spec.scheduling


def chosen(found: Capabilities, **fields: Any) -> str | None:
    scheduler = registry.gang_scheduler(scheduling(**fields), found)
    return scheduler.name if scheduler is not None else None


def serving(*apis: str, enabled: bool = True) -> Capabilities:
    return Capabilities(pod_groups=frozenset(apis), gangs_enabled=enabled)


class TestChoice:
    @pytest.mark.parametrize(
        ("name", "api", "expected"),
        [
            (None, capabilities.KUBERNETES_1_37, "kube-scheduler 1.37"),
            (None, capabilities.KUBERNETES_1_36, "kube-scheduler 1.36"),
            ("default-scheduler", capabilities.KUBERNETES_1_36, "kube-scheduler 1.36"),
            ("volcano", capabilities.VOLCANO, "Volcano"),
            ("scheduler-plugins-scheduler", capabilities.COSCHEDULING, "coscheduling"),
            ("our-own", capabilities.COSCHEDULING, "coscheduling"),
        ],
    )
    def test_is_by_the_schedulers_name_then_by_what_the_cluster_serves(
        self, name: str | None, api: str, expected: str
    ) -> None:
        assert chosen(serving(api), schedulerName=name) == expected
        others = serving(*set(capabilities.POD_GROUP_APIS) - {api})
        assert chosen(others, schedulerName=name) != expected
        assert chosen(serving(api, enabled=False), schedulerName=name) is None, "the operator may not create groups"

    def test_of_yunikorn_needs_no_api_and_no_right(self) -> None:
        assert chosen(Capabilities(), schedulerName="yunikorn") == "YuniKorn"

    def test_never_falls_on_the_groups_of_a_scheduler_that_is_not_named(self) -> None:
        assert chosen(serving(capabilities.VOLCANO, capabilities.COSCHEDULING)) is None
        assert chosen(serving(capabilities.KUBERNETES_1_36), schedulerName="volcano") is None

    @each(*SCHEDULERS)
    def test_is_none_for_basic(self, known: Scheduler) -> None:
        assert chosen(EVERYTHING, **known.scheduling, schedulingPolicy=BASIC) is None
        assert chosen(EVERYTHING, **known.scheduling, schedulingPolicy=GANG) is not None

    def test_is_among_distinct_names_and_apis(self) -> None:
        apis = [found.api for found in registry.GANG_SCHEDULERS if found.api]
        assert sorted(apis) == sorted(capabilities.POD_GROUP_APIS), "whatever is watched is used, and the other way"


class TestWhyNone:
    @pytest.mark.parametrize(
        ("fields", "found", "sentence"),
        [
            (
                {},
                Capabilities(),
                "the operator runs without --gang-scheduling; set gangScheduling.enabled of its chart",
            ),
            (
                {},
                serving(),
                "the cluster does not serve scheduling.k8s.io/v1beta1 or scheduling.k8s.io/v1alpha2; enable the "
                "feature gates GenericWorkload and GangScheduling, and one of these APIs, of Kubernetes 1.36 or later, "
                "or name another gang scheduler in scheduling.schedulerName",
            ),
            (
                {"schedulerName": "volcano"},
                serving(capabilities.KUBERNETES_1_36),
                "the cluster does not serve scheduling.volcano.sh/v1beta1; install Volcano",
            ),
            (
                {"schedulerName": "volcanoo"},
                serving(capabilities.VOLCANO),
                "no gang scheduler is known by the schedulerName volcanoo, and the cluster does not serve "
                "scheduling.x-k8s.io/v1alpha1; correct it, or install scheduler-plugins with the plugin Coscheduling",
            ),
        ],
    )
    def test_says_what_is_missing_and_every_way_out(
        self, fields: dict[str, Any], found: Capabilities, sentence: str
    ) -> None:
        told = registry.why_none(scheduling(**fields, schedulingPolicy=GANG), found)
        assert told == f"schedulingPolicy is gang, but {sentence}, or use basic: {{}}"


class TestMinResources:
    @given(
        st.decimals(min_value=0, max_value=10**9, places=3).map(lambda found: f"{found:f}"),
        st.sampled_from(["", "m", "Ki", "Gi", "M", "e3", "E"]),
        st.integers(1, 1024),
    )
    def test_a_multiple_is_exact_and_in_the_same_unit(self, number: str, unit: str, count: int) -> None:
        found = min_resources.times(number + unit, count)
        assert found.endswith(unit)
        assert Fraction(found.removesuffix(unit)) == Fraction(number) * count

    @pytest.mark.parametrize(
        ("quantity", "product"), [("1.5Gi", "6Gi"), ("500m", "2000m"), ("2", "8"), ("+.5", "2"), ("10", "40")]
    )
    def test_quantities_stay_readable(self, quantity: str, product: str) -> None:
        assert min_resources.times(quantity, 4) == product

    def test_what_is_no_quantity_is_refused(self) -> None:
        with pytest.raises(ValueError, match="much is no quantity"):
            min_resources.times("much", 2)

    def test_a_limit_without_a_request_is_requested_and_so_is_the_device(self) -> None:
        resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "4Gi"}}
        wanted = job(device={"type": "GPU", "count": 4}, template={"resources": resources})
        assert min_resources.of_gang(wanted, wanted.spec.stages[0]) == {
            "cpu": "2000m",
            "memory": "16Gi",
            "nvidia.com/gpu": "4",
        }


def placed(wanted: Job, found: Capabilities, index: int = 0, attempt: int = 0) -> dict[str, Any]:
    """The pod of an index with what its gang scheduler wants of it."""
    stage = wanted.spec.stages[0]
    placement = of(wanted, found).placed(base_placement(wanted), wanted, stage, attempt)
    return pod(wanted, stage, attempt, index, placement)


def of(wanted: Job, found: Capabilities) -> GangScheduler:
    scheduler = registry.gang_scheduler(wanted.spec.scheduling, found)
    assert scheduler is not None
    return scheduler


def group(wanted: Job, found: Capabilities) -> dict[str, Any]:
    """The group of the first attempt."""
    manifest = of(wanted, found).pod_group
    assert manifest is not None
    return manifest(wanted, wanted.spec.stages[0], 0)


class TestObjects:
    def test_a_priority_is_that_of_the_group_too_where_groups_preempt(self) -> None:
        wanted = job(scheduling={"priorityClassName": "high"})
        for api in (capabilities.KUBERNETES_1_36, capabilities.KUBERNETES_1_37):
            assert group(wanted, serving(api))["spec"]["priorityClassName"] == "high"
            assert placed(wanted, serving(api))["spec"]["priorityClassName"] == "high"

    def test_the_whole_group_is_preempted_or_none_in_each_versions_form(self) -> None:
        modes = [
            group(job(), serving(api))["spec"]["disruptionMode"]
            for api in (capabilities.KUBERNETES_1_36, capabilities.KUBERNETES_1_37)
        ]
        assert modes == ["PodGroup", {"all": {}}]

    @pytest.mark.parametrize("kind", ["annotations", "labels"])
    def test_volcanos_queue_is_the_one_that_the_job_names(self, kind: str) -> None:
        fields: dict[str, Any] = {"schedulerName": "volcano"}
        metadata = {kind: {"scheduling.volcano.sh/queue-name": "team-a"}}
        assert group(job(metadata=metadata, scheduling=fields), EVERYTHING)["spec"]["queue"] == "team-a"
        assert "queue" not in group(job(scheduling=fields), EVERYTHING)["spec"]

    def test_yunikorns_queue_is_the_one_that_the_job_names(self) -> None:
        fields: dict[str, Any] = {"schedulerName": "yunikorn"}
        metadata = {"labels": {"queue": "root.team-a"}}
        assert placed(job(metadata=metadata, scheduling=fields), EVERYTHING)["metadata"]["labels"]["queue"] == (
            "root.team-a"
        )
        assert "queue" not in placed(job(scheduling=fields), EVERYTHING)["metadata"]["labels"]

    def test_yunikorn_never_schedules_half_a_gang_and_waits_no_longer_than_the_job(self) -> None:
        wanted = job(scheduling={"schedulerName": "yunikorn"}, runPolicy={"startupDeadlineSeconds": 77})
        told = placed(wanted, EVERYTHING)["metadata"]["annotations"]
        parameters = told["yunikorn.apache.org/schedulingPolicyParameters"].split()
        assert set(parameters) == {"gangSchedulingStyle=Hard", "placeholderTimeoutInSeconds=77"}

    def test_yunikorn_never_meets_an_application_twice(self) -> None:
        """Not from another namespace, whose job has the same name, and not after a restart."""
        wanted = job(scheduling={"schedulerName": "yunikorn"})
        elsewhere = replace(wanted, namespace="other", uid="2222")
        labels = [
            placed(wanted, EVERYTHING)["metadata"]["labels"],
            placed(wanted, EVERYTHING, attempt=1)["metadata"]["labels"],
            placed(elsewhere, EVERYTHING)["metadata"]["labels"],
        ]
        assert len({found["applicationId"] for found in labels}) == 3

    def test_a_jobs_own_annotations_are_on_its_pods_beside_the_groups(self) -> None:
        metadata = {"annotations": {"huawei.com/schedule_policy": "chip4-node8", "note": "not this"}}
        for known in SCHEDULERS:
            found = placed(job(metadata=metadata, scheduling=known.scheduling), known.capabilities)
            assert found["metadata"]["annotations"]["huawei.com/schedule_policy"] == "chip4-node8"
            assert "note" not in found["metadata"]["annotations"]


class TestTopology:
    @each(*(found for found in SCHEDULERS if found.name != "volcano"))
    def test_pods_have_an_affinity_to_each_other_on_the_label(self, known: Scheduler) -> None:
        """Kubernetes, too: without a gate of its own, the API server drops the constraint of a group."""
        wanted = job(scheduling={**known.scheduling, "schedulingConstraints": RACK})
        (term,) = near(placed(wanted, known.capabilities))
        assert term["topologyKey"] == "example.com/rack"
        selected = {names.LABEL_JOB_UID: wanted.uid, names.LABEL_ATTEMPT: "0"}
        assert term["labelSelector"] == {"matchLabels": selected}
        assert selected.items() <= placed(wanted, known.capabilities)["metadata"]["labels"].items()

    def test_kubernetes_has_it_as_the_groups_constraint(self) -> None:
        wanted = job(scheduling={"schedulingConstraints": RACK})
        for api in (capabilities.KUBERNETES_1_36, capabilities.KUBERNETES_1_37):
            assert group(wanted, serving(api))["spec"]["schedulingConstraints"] == RACK

    def test_volcano_has_it_as_a_hard_tier_and_needs_no_affinity(self) -> None:
        wanted = job(scheduling={"schedulerName": "volcano", "schedulingConstraints": RACK})
        tier = {"mode": "hard", "highestTierName": "example.com/rack"}
        assert group(wanted, EVERYTHING)["spec"]["networkTopology"] == tier
        assert "affinity" not in placed(wanted, EVERYTHING)["spec"]

    def test_without_a_gang_scheduler_it_is_an_affinity_as_well(self) -> None:
        cluster = Cluster(job(scheduling={"schedulingPolicy": BASIC, "schedulingConstraints": RACK}))
        cluster.settle()
        assert [[term["topologyKey"] for term in near(found)] for found in cluster.gang()] == [["example.com/rack"]] * 2

    @pytest.mark.parametrize("name", ["kubernetes-1.36", "kubernetes-1.37", "volcano"])
    def test_beside_per_node_the_groups_constraint_does_not_depend_on_an_order_of_pods(self, name: str) -> None:
        (known,) = (found for found in SCHEDULERS if found.name == name)
        device = {"type": "CPU", "count": 4, "perNode": 2}
        plain = job(device=device, scheduling=known.scheduling)
        wanted = job(device=device, scheduling={**known.scheduling, "schedulingConstraints": RACK})
        for index in range(4):
            (term,) = near(placed(wanted, known.capabilities, index))
            assert [term] == near(placed(plain, known.capabilities, index))

    def test_beside_per_node_both_hold_without_a_groups_constraint(self) -> None:
        device = {"type": "CPU", "count": 4, "perNode": 2}
        cluster = Cluster(job(device=device, scheduling={"schedulingConstraints": RACK}))
        cluster.settle()
        for index, found in enumerate(cluster.gang()):
            (term,) = near(found)
            chosen = dict(term["labelSelector"]["matchLabels"])
            labels = found["metadata"]["labels"]
            if index % 2 == 0:
                assert term["topologyKey"] == "example.com/rack"
                assert chosen.items() <= labels.items(), "the very first may go anywhere"
            else:
                assert term["topologyKey"] == "kubernetes.io/hostname"
                assert chosen.pop(names.LABEL_INDEX) == str(index - 1)
                assert chosen.items() <= labels.items(), "and it waits for that pod: it is not like it"
            (apart,) = found["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert apart["topologyKey"] == "kubernetes.io/hostname"


def near(found: dict[str, Any]) -> list[dict[str, Any]]:
    terms: list[dict[str, Any]] = found["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return terms


@each(*SCHEDULERS)
@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    per_node=st.sampled_from([None, 1, 2]),
    topology=st.sampled_from([{}, RACK]),
    policy=st.sampled_from([None, GANG]),
    restarts=st.integers(0, 2),
)
def test_all_pods_of_an_attempt_are_in_one_group_that_counts_exactly_them(
    known: Scheduler,
    sizes: list[int],
    per_node: int | None,
    topology: dict[str, Any],
    policy: dict[str, Any] | None,
    restarts: int,
) -> None:
    """Whatever the job and the attempt are; and the group is there before its first pod."""
    most = max(sizes) * (per_node or 1)
    stages = [
        {"name": f"s{number}", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8, "deviceCount": size}
        for number, size in enumerate([found * (per_node or 1) for found in sizes])
    ]
    fields = {**known.scheduling, "schedulingPolicy": policy, "schedulingConstraints": topology}
    device = {"type": "CPU", "count": most, "perNode": per_node}
    cluster = Cluster(job(device=device, stages=stages, scheduling=fields, failurePolicy={"backoffSeconds": 0}))
    cluster.capabilities = known.capabilities
    seen = []
    for stage in stages:
        for _ in range(restarts):
            cluster.started()
            cluster.exit(0, 137)
            cluster.settle()
        cluster.settle()
        gang = cluster.gang()
        assert len(gang) == stage["deviceCount"]
        (name,) = {known.group(found) for found in gang}
        assert {known.members(found, cluster.pod_groups) for found in gang} == {stage["deviceCount"]}
        assert len(cluster.pod_groups) <= 1, "an earlier attempt's group is deleted"
        seen.append(name)
        cluster.run_all()
        for index in range(len(gang)):
            cluster.exit(index, 0)
        cluster.settle()
    if cluster.pod_groups:
        for number, found in enumerate(cluster.created):
            gang_name = found.removeprefix("PodGroup ") if "PodGroup" in found else found.rpartition("-")[0]
            assert cluster.created.index(f"PodGroup {gang_name}") <= number, "no pod comes before its group"
    assert len(set(seen)) == len(seen), "no attempt shares its group with another"
