"""Schema checker: error sentences, defaults, null and numbers as the API server treats them, and malformed jobs."""

import copy
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.device import Device
from resnetboost_api.optimizers import Adasum, Pca, Thor, Topology
from resnetboost_api.stage import Snapshots
from resnetboost_operator.job import parse_job, ranks_per_summand
from resnetboost_operator.validation import schema

Object = dict[str, Any]


def job(**spec: Any) -> Object:
    """A small valid job with fields of its spec replaced, or removed where None."""
    right: Object = {
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": [{"name": "base", "algorithm": "Momentum", "epochs": 10, "localBatchSize": 32}],
    }
    spec = {name: value for name, value in {**right, **spec}.items() if value is not None}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "job"}, "spec": spec}


def stage(**fields: Any) -> Object:
    return job(stages=[{**job()["spec"]["stages"][0], **fields}])


def named(name: Any) -> Object:
    return {**job(), "metadata": {"name": name}}


def told(obj: Any, old: Any = None) -> list[str]:
    return [str(problem) for problem in schema.check(obj, old)]


NOT_JOBS = {
    "nothing": (None, "a job is a mapping with apiVersion, kind, metadata and spec, not nothing"),
    "a list": ([1], "a job is a mapping with apiVersion, kind, metadata and spec, not a list"),
    "no version": ({"kind": names.KIND}, "apiVersion: is missing; use resnetboost.io/v1alpha1"),
    "another kind": (
        {"apiVersion": names.API_VERSION, "kind": "Job", "metadata": 1, "junk": 2},
        "kind: 'Job' is not supported; use ResNetBoostJob",
    ),
}


@pytest.mark.parametrize(("obj", "sentence"), NOT_JOBS.values(), ids=NOT_JOBS.keys())
def test_an_object_that_is_no_job_gets_one_sentence(obj: Any, sentence: str) -> None:
    assert told(obj) == [sentence]


PROBLEMS = {
    "a whole number too small": (stage(epochs=0), "spec.stages[0].epochs: 0 is too small; use at least 1"),
    "a number below an exclusive end": (
        stage(learningRate={"peak": -0.5}),
        "spec.stages[0].learningRate.peak: -0.5 is too small; use more than 0",
    ),
    "a number as text": (
        stage(learningRate={"peak": "1e-4"}),
        "spec.stages[0].learningRate.peak: '1e-4' is text; write the number without quotes",
    ),
    "a number where text is due": (
        named(5),
        'metadata.name: 5 is not text; write it in quotes: "5"',
    ),
    "true where a number is due": (
        job(seed=True),
        "spec.seed: true is not a whole number; use a whole number from 0 to 2147483647",
    ),
    "not a number": (
        stage(labelSmoothing=math.nan),
        "spec.stages[0].labelSmoothing: nan is not a number; use a number from 0 to below 1",
    ),
    "a number beyond 64 bits": (
        job(seed=2**80),
        f"spec.seed: {2**80} is too large; use at most 2147483647",
    ),
    "a number beyond 64 bits the other way": (
        job(seed=-(2**80)),
        f"spec.seed: -{2**80} is too small; use at least 0",
    ),
    "a number for a block of one": (
        stage(learningRate=0.1),
        "spec.stages[0].learningRate: 0.1 is not a mapping; write learningRate: {peak: 0.1}",
    ),
    "a number for a block of many": (
        stage(pca=3),
        "spec.stages[0].pca: 3 is not a mapping; use a mapping with components, solver, lineSearch and residual",
    ),
    "a field as scripts call it": (
        stage(lr=0.1),
        "spec.stages[0].lr: no such field; did you mean learningRate.peak?",
    ),
    "a field as scripts call it, elsewhere": (
        job(**{"Batch-Size": 32}),
        "spec.Batch-Size: no such field; did you mean stages[].localBatchSize?",
    ),
    "an unlikely word": (
        job(device={"type": "quantum"}),
        "spec.device.type: 'quantum' is not known; use CPU, Ascend or GPU",
    ),
    "a likely word": (
        stage(learningRate={"schedule": "Cosin"}),
        "spec.stages[0].learningRate.schedule: 'Cosin' is not known; did you mean Cosine?",
    ),
    "a field in other letters": (
        stage(labelsmoothing=0.1),
        "spec.stages[0].labelsmoothing: no such field; did you mean labelSmoothing?",
    ),
    "a field of another place": (
        job(suspend=True),
        "spec.suspend: no such field here; it belongs to spec.runPolicy",
    ),
    "a field of many places": (
        job(name="x"),
        "spec.name: no such field; use seed, jitLevel, device, model, dataset, stages, checkpoint, runPolicy, "
        "failurePolicy, preflight, tracking, scheduling, storage and template",
    ),
    "a key that is no word": (
        job(template={"resources": {"limits": {"example.com/gpu": "many"}}}),
        "spec.template.resources.limits[example.com/gpu]: 'many' does not fit; use a quantity such as 2, 500m or 2Gi",
    ),
    "text with a line end": (
        stage(name="base\n"),
        r"spec.stages[0].name: 'base\n' does not fit; use a-z, 0-9 and '-', starting with a letter and ending with "
        "a letter or digit",
    ),
    "a long text is cut": (
        job(device={"type": "x" * 200}),
        f"spec.device.type: '{'x' * 55}...' is not known; use CPU, Ascend or GPU",
    ),
    "too many keys": (
        job(template={"nodeSelector": {f"k{i}": "" for i in range(17)}}),
        "spec.template.nodeSelector: has 17 keys; use at most 16",
    ),
    "no metadata": (
        {**job(), "metadata": None},
        "metadata: is missing; use a mapping with name",
    ),
    "an empty name": (named(""), "metadata.name: is empty; give at least 1 character"),
    "a label with a bad key": (
        {**job(), "metadata": {"name": "job", "labels": {"-a": "b"}}},
        "metadata.labels.-a: '-a' does not fit as a key; use letters, digits, '-', '_' and '.', after a domain and '/' "
        "if need be",
    ),
}


@pytest.mark.parametrize(("obj", "sentence"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_problem_names_field_value_and_what_would_be_right(obj: Object, sentence: str) -> None:
    assert told(obj) == [sentence]


AMOUNTS = [
    ("1", 1, True),
    (2, "1999m", False),
    ("1024Mi", "1Gi", True),
    ("1Gi", "1G", False),
    ("1e3", "1k", True),
    ("1.5E3", "1E", True),
    (".5", "499999u", False),
    ("100n", "+1u", True),
]


@pytest.mark.parametrize(("request_", "limit", "fits"), AMOUNTS, ids=str)
def test_a_request_fits_into_its_limit_however_both_are_written(
    request_: int | str, limit: int | str, fits: bool
) -> None:
    resources = {"requests": {"cpu": request_, "memory": "1Gi"}, "limits": {"cpu": limit}}
    sentence = (
        "spec.template.resources: no pod may request more cpu than its limit; raise the limit or lower the request"
    )
    assert told(job(template={"resources": resources})) == ([] if fits else [sentence])


def test_a_problem_has_the_value_found() -> None:
    assert schema.check(stage(epochs=0)) == [
        schema.Problem("spec.stages[0].epochs", 0, "0 is too small; use at least 1")
    ]


def test_all_problems_are_reported_at_once() -> None:
    wrong = stage(epochs="x", learningRate={"final": 1, "warmupEpochs": 99})
    wrong["metadata"]["name"] = "a.b"
    assert [problem.field for problem in schema.check(wrong)] == [
        "spec.stages[0].epochs",
        "metadata.name",
        "spec.stages[0].learningRate.final",  # but not warmupEpochs: the value it is compared with is wrong
    ]


ACCEPTED = {
    "a whole number as a fraction": stage(epochs=10.0),
    "a whole number for a fraction": stage(learningRate={"peak": 1}),
    "null for a field with a default": job(seed=None, device=None),
    "null for an optional field": job(checkpoint={"claimName": None}),
    "null in metadata": {**job(), "metadata": {"name": "job", "labels": None, "annotations": {"a": None}}},
    "a status of whatever kind": {**job(), "status": 5},
    "what a cluster adds to metadata": {
        **job(),
        "metadata": {
            "name": "job",
            "namespace": "team-a",
            "uid": "x",
            "generation": 2,
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "managedFields": [{}],
            "labels": {"example.com/a": ""},
        },
    },
}


@pytest.mark.parametrize("obj", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_jobs_valid_for_the_api_server_are_valid(obj: Object) -> None:
    assert told(obj) == []


def test_nested_defaults_are_filled_in() -> None:
    spec = schema.defaulted(job())["spec"]
    assert spec["device"] == {"type": "CPU", "count": 1, "elasticAfterSeconds": 300, "resizeBackoffSeconds": 1800}
    assert spec["template"]["resources"] == {"requests": {}, "limits": {}}
    assert spec["stages"][0]["learningRate"] == {
        "schedule": "Cosine",
        "peak": 0.1,
        "final": 0,
        "warmupEpochs": 0,
        "gamma": 0.1,
        "power": 2,
    }


def test_nulls_become_defaults_or_are_removed() -> None:
    spec = schema.defaulted(stage(epochs=None, labelSmoothing=None))["spec"]
    assert "epochs" not in spec["stages"][0]
    assert spec["stages"][0]["labelSmoothing"] == 0.1


def test_numbers_get_the_type_of_their_field() -> None:
    limits = {"cpu": 2.0, "memory": 1.5}
    spec = schema.defaulted(job(seed=1.0, template={"resources": {"limits": limits}}))["spec"]
    assert (spec["seed"], type(spec["seed"])) == (1, int)
    assert spec["template"]["resources"]["limits"] == {"cpu": 2, "memory": 1.5}
    assert type(spec["template"]["resources"]["limits"]["cpu"]) is int


def test_neither_checking_nor_defaulting_changes_the_object() -> None:
    obj = job(seed=None)
    before = copy.deepcopy(obj)
    schema.check(obj, obj)
    schema.defaulted(obj)["spec"]["template"]["env"].append(1)
    assert obj == before
    assert schema.defaulted(obj)["spec"]["template"]["env"] == []


def test_parse_reads_a_defaulted_job() -> None:
    obj = schema.defaulted(stage(learningRate={"schedule": "Step", "milestones": [3, 5.5]}))
    parsed = parse_job(obj)
    assert (parsed.name, parsed.namespace, parsed.uid, parsed.generation) == ("job", "default", "", 1)
    assert parsed.spec.stages[0].learning_rate.milestones == (3.0, 5.5)
    assert type(parsed.spec.stages[0].learning_rate.final) is float
    assert parsed.spec.checkpoint.claim_name is None


def test_a_stage_of_thor_has_its_settings_whether_given_or_not_and_no_other_stage_has() -> None:
    given = {"frequency": 20, "damping": {"split": "Symmetric"}, "clipNorm": 1}
    stages = [stage(**fields)["spec"]["stages"][0] for fields in ({}, {"algorithm": "THOR"})]
    stages.append({**stages[1], "thor": given})
    obj = job(stages=[{**found, "name": f"s{index}"} for index, found in enumerate(stages)])
    momentum, bare, own = (found.thor for found in parse_job(schema.defaulted(obj)).spec.stages)
    assert momentum is None
    assert bare == Thor()
    assert own is not None
    assert (own.frequency, own.block_size, own.clip_norm) == (20, bare.block_size, 1)
    assert (own.damping.split, own.damping.initial) == ("Symmetric", bare.damping.initial)


def test_a_stage_of_adasum_has_its_settings_whether_given_or_not_and_thors_only_if_given() -> None:
    summed = stage(algorithm="Adasum")["spec"]["stages"][0]
    given: list[Object] = [{}, {"adasum": {"topology": "Flat"}}, {"thor": {"frequency": 20}}]
    obj = job(stages=[{**summed, "name": f"s{index}", **fields} for index, fields in enumerate(given)])
    bare, own, rescaled = parse_job(schema.defaulted(obj)).spec.stages
    assert (bare.adasum, bare.thor) == (Adasum(), None)
    assert (own.adasum, own.thor) == (Adasum(reduce="Delta", topology="Flat"), None)
    assert rescaled.adasum == Adasum()
    assert rescaled.thor is not None and rescaled.thor.frequency == 20
    assert parse_job(schema.defaulted(job())).spec.stages[0].adasum is None


@pytest.mark.parametrize(
    ("topology", "per_node", "count", "ranks"),
    [
        ("Hierarchical", 4, 8, 4),
        ("Hierarchical", None, 8, 1),
        ("Hierarchical", 4, 2, 2),
        ("Flat", 4, 8, 1),
        ("Flat", None, 8, 1),
    ],
)
def test_adasum_sums_across_the_nodes_a_job_asks_for_or_across_ranks(
    topology: Topology, per_node: int | None, count: int, ranks: int
) -> None:
    device = Device(type="CPU", count=8, per_node=per_node)
    (found,) = parse_job(schema.defaulted(stage(algorithm="Adasum", adasum={"topology": topology}))).spec.stages
    assert ranks_per_summand(device, replace(found, device_count=count)) == ranks


def test_a_stage_of_pca_has_its_settings_whether_given_or_not() -> None:
    first = {**stage()["spec"]["stages"][0], "snapshots": {"everyEpochs": 0.1}}
    given: list[Object] = [{}, {"pca": {}}, {"pca": {"solver": "SGD", "lineSearch": {"maxTrials": 3}}}]
    later = [{**first, "name": f"s{index}", "algorithm": "PCA", **fields} for index, fields in enumerate(given)]
    base, left_out, bare, own = parse_job(schema.defaulted(job(stages=[first, *later]))).spec.stages
    assert (base.pca, left_out.pca, bare.pca) == (None, Pca(), Pca())
    assert own.pca == replace(Pca(), solver="SGD", line_search=replace(Pca().line_search, max_trials=3))
    assert base.snapshots == Snapshots(every_epochs=0.1, from_epoch=0, keep=60)
    assert parse_job(schema.defaulted(job())).spec.stages[0].snapshots is None


def test_a_stage_has_the_jobs_devices_if_it_has_no_number_of_its_own() -> None:
    first = stage()["spec"]["stages"][0]
    stages = [{**first, "name": "few", "deviceCount": 2}, {**first, "name": "all"}]
    parsed = parse_job(schema.defaulted(job(stages=stages, device={"count": 8})))
    assert [found.device_count for found in parsed.spec.stages] == [2, 8]


class TestChanges:
    def test_the_same_job_with_its_defaults_written_out_is_no_change(self) -> None:
        assert told(schema.defaulted(job()), job()) == []
        assert told(job(), schema.defaulted(job())) == []

    def test_the_change_is_named(self) -> None:
        changed = job(failurePolicy={"maxRestarts": 1, "hangTimeoutSeconds": 50})
        assert told(changed, job()) == [
            "spec.failurePolicy: of failurePolicy only maxRestarts, rules, nodeExclusion and straggler can change "
            "once the job exists; take back the "
            "other changes, or delete the job and apply it again "
            "(failurePolicy.hangTimeoutSeconds was 600 and is now 50)"
        ]

    def test_where_a_job_may_run_changes_only_while_it_is_suspended(self) -> None:
        def placed(suspend: bool, **selector: str) -> dict[str, Any]:
            return job(runPolicy={"suspend": suspend}, template={"nodeSelector": selector})

        assert told(placed(False, pool="a"), placed(True)) == []
        (problem,) = told(placed(True, pool="a"), placed(False))
        assert problem.startswith(
            "spec.template: nodeSelector and tolerations can change only while the job is suspended"
        )

    def test_who_schedules_a_job_changes_only_while_it_is_suspended(self) -> None:
        def scheduled(suspend: bool, **scheduling: Any) -> dict[str, Any]:
            return job(runPolicy={"suspend": suspend}, scheduling=scheduling)

        gang: dict[str, Any] = {"schedulingPolicy": {"gang": {}}}
        assert told(scheduled(False, **gang), scheduled(True)) == []
        assert told(scheduled(False), scheduled(True, **gang)) == []
        assert told(scheduled(False, **gang), scheduled(False, **gang)) == []
        (problem,) = told(scheduled(True, **gang), scheduled(False))
        assert problem.startswith(
            "spec.scheduling: scheduling can change only while the job is suspended; set runPolicy"
        )

    def test_keyed_lists_may_be_sorted_anew_but_stages_may_not(self) -> None:
        one, two = {"name": "A", "value": "1"}, {"name": "B", "value": "2"}
        assert told(job(template={"env": [two, one]}), job(template={"env": [one, two]})) == []
        first, second = {**stage()["spec"]["stages"][0], "name": "a"}, {**stage()["spec"]["stages"][0], "name": "b"}
        claim = {"checkpoint": {"claimName": "claim"}}
        problems = schema.check(job(stages=[second, first], **claim), job(stages=[first, second], **claim))
        assert [problem.field for problem in problems] == ["spec.stages"]

    def test_a_broken_old_job_is_an_old_job(self) -> None:
        assert told(job(), job(stages=[None, 3])) == [
            "spec.stages: stages cannot change once the job exists; delete the job and apply it again "
            "(stages had 2 items, now 1)"
        ]


class TestStatus:
    def test_a_right_one(self) -> None:
        attempts = [{"attempt": 0, "rank": None, "exitCode": 137, "endTime": "2026-01-31T12:00:00.5Z"}]
        assert schema.check_status({"phase": "Running", "attempts": attempts}) == []
        assert schema.check_status({"phase": "Running", "attempts": tuple(attempts)}) == []

    def test_a_wrong_one(self) -> None:
        wrong = {"phase": "Going", "attempts": [{"attempt": 1}] * 2, "startTime": "now"}
        assert [str(problem) for problem in schema.check_status(wrong)] == [
            "status.phase: 'Going' is not known; use Pending, Queued, Starting, Running, Restarting, Suspending, "
            "Suspended, Complete or Failed",
            "status.attempts[1].attempt: 1 is given twice; use each only once",
            "status.startTime: 'now' is no time; use one such as 2026-01-31T12:00:00Z",
        ]


WORDS = st.sampled_from(
    ["name", "spec", "metadata", "stages", "template", "env", "volumes", "epochs", "learningRate", "peak", "", "a.b/c"]
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["npz", "Step"])
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.integers() | st.booleans() | st.none(), inner, max_size=4)
    ),
    max_leaves=12,
)
PLACES: list[tuple[str | int, ...]] = [
    ("metadata",),
    ("metadata", "labels"),
    ("spec",),
    ("spec", "seed"),
    ("spec", "model"),
    ("spec", "dataset"),
    ("spec", "dataset", "path"),
    ("spec", "stages"),
    ("spec", "stages", 0),
    ("spec", "stages", 0, "learningRate"),
    ("spec", "stages", 0, "learningRate", "milestones"),
    ("spec", "stages", 0, "learningRate", "warmupEpochs"),
    ("spec", "stages", 0, "algorithm"),
    ("spec", "stages", 0, "thor"),
    ("spec", "stages", 0, "adasum"),
    ("spec", "failurePolicy"),
    ("spec", "failurePolicy", "backoffSeconds"),
    ("spec", "template"),
    ("spec", "template", "env"),
    ("spec", "template", "resources", "limits"),
    ("spec", "template", "volumes"),
    ("spec", "template", "volumeMounts"),
    ("status",),
]


def with_junk(place: tuple[str | int, ...], junk: Any) -> Any:
    obj: Any = schema.defaulted(job())
    holder = obj
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = junk
    return obj


@given(JUNK, st.none() | JUNK)
def test_any_object_gives_sentences_and_never_raises(junk: Any, old: Any) -> None:
    problems = schema.check(junk, old)
    assert problems
    assert all(str(problem) and "\n" not in str(problem) for problem in problems)


@pytest.mark.slow
@example(("status",), True, ("metadata",), None)
@example(("status",), {"virtualRanks": "2"}, ("metadata",), None)
@given(st.sampled_from(PLACES), JUNK, st.sampled_from(PLACES), JUNK)
def test_junk_in_a_job_never_raises_and_what_passes_can_be_parsed(
    place: tuple[str | int, ...], junk: Any, old_place: tuple[str | int, ...], old_junk: Any
) -> None:
    obj = with_junk(place, junk)
    schema.check(obj, with_junk(old_place, old_junk))
    if not schema.check(obj):
        parse_job(schema.defaulted(obj))


@given(st.sampled_from(PLACES), JUNK)
def test_defaulting_is_idempotent(place: tuple[str | int, ...], junk: Any) -> None:
    once = schema.defaulted(with_junk(place, junk))
    assert repr(schema.defaulted(once)) == repr(once)  # compares repr, as NaN differs from itself


@given(JUNK)
def test_any_status_never_raises(junk: Any) -> None:
    schema.check_status(junk)
