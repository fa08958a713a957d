"""Invariants of Ascend gangs over random histories: late or wrong annotations, crashes between writes, lost pods."""

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api import names
from resnetboost_operator import status
from resnetboost_operator.ranktable.check import verdict
from support.examples import examples
from support.simulation import Cluster, Crash, job

COUNT = 4
INDEXES = st.integers(0, COUNT - 1)

cluster_event = st.one_of(
    st.tuples(st.just("pass"), st.none() | st.integers(0, 6)),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("kubelet"), st.none()),
    st.tuples(st.just("time"), st.integers(1, 40)),
    st.tuples(st.just("allocate"), st.tuples(INDEXES, st.integers(0, 3), st.integers(1, 6))),
    st.tuples(st.just("right"), INDEXES),
    st.tuples(st.just("right"), INDEXES),
    st.tuples(st.just("exit"), st.tuples(INDEXES, st.sampled_from([1, 137]))),
    st.tuples(st.just("vanish"), INDEXES),
)


def happen(cluster: Cluster, what: str, how: Any) -> None:
    present = {pod["metadata"]["labels"][names.LABEL_INDEX] for pod in cluster.gang()}
    index = how[0] if isinstance(how, tuple) else how
    if what == "pass":
        with contextlib.suppress(Crash):
            cluster.step(crash_after=how)
    elif what == "run":
        run(cluster)
    elif what == "kubelet":
        cluster.finish_deletions()
    elif what == "time":
        cluster.now += how
    elif str(index) in present:
        happen_to_a_pod(cluster, what, index, how)


def run(cluster: Cluster) -> None:
    cluster.run_all()
    for pod in cluster.gang():
        pod["spec"]["nodeName"] = f"node-{int(pod['metadata']['labels'][names.LABEL_INDEX]) // 2}"


def happen_to_a_pod(cluster: Cluster, what: str, index: int, how: Any) -> None:
    if what == "allocate":
        cluster.allocate(index, how[1], f"10.0.0.{how[2]}")
    elif what == "right":
        cluster.allocate(index, index % 2, f"10.0.0.{index + 1}")
    elif what == "exit" and cluster.rank(index)["status"]["phase"] == "Running":
        cluster.exit(index, how[1])
    elif what == "vanish":
        cluster.vanish(index)


def check(cluster: Cluster) -> None:
    for name, found in cluster.config_maps.items():
        if name.endswith("-ranks"):
            table, ranks = found["data"][names.RANK_TABLE_KEY], json.loads(found["data"][names.RANKS_KEY])
            assert verdict.judge_bytes(table.encode(), "910B").findings == ()
            assert sorted(ranks["ranks"]) == list(range(COUNT))
    for pod in cluster.pods.values():
        digest = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_RANK_TABLE)
        if digest is not None:
            labels = pod["metadata"]["labels"]
            gang = names.rank_table(
                "digits", cluster.job.uid, labels[names.LABEL_STAGE], int(labels[names.LABEL_ATTEMPT])
            )
            assert json.loads(cluster.config_maps[gang]["data"][names.RANKS_KEY])["sha256"] == digest
    if status.is_true(cluster.status, status.RANK_TABLE_READY) and not status.is_terminal(cluster.status):
        gang = names.rank_table("digits", cluster.job.uid, "base", cluster.status.attempt)
        ranks = json.loads(cluster.config_maps[gang]["data"][names.RANKS_KEY])
        assert ranks["sha256"] == cluster.status.rank_table


HISTORIES = st.lists(cluster_event, max_size=60)


@examples(300)
@given(HISTORIES)
def test_published_tables_are_valid_and_never_change(events: list[tuple[str, Any]]) -> None:
    cluster = Cluster(job(device={"type": "Ascend", "count": COUNT}, failurePolicy={"backoffSeconds": 1}))
    for what, how in events:
        happen(cluster, what, how)
        check(cluster)


@examples(100)
@given(HISTORIES)
def test_from_every_random_history_a_healthy_cluster_gets_every_rank_its_table(events: list[tuple[str, Any]]) -> None:
    policy = {"backoffSeconds": 1, "maxRestarts": 1000}
    cluster = Cluster(job(device={"type": "Ascend", "count": COUNT}, failurePolicy=policy))
    for what, how in events:
        happen(cluster, what, how)
    for _ in range(10):
        cluster.now += 700
        cluster.step()
        cluster.finish_deletions()
        cluster.step()
        run(cluster)
        for index in range(len(cluster.gang())):
            cluster.allocate(index, index % 2, f"10.0.0.{index + 1}")
        cluster.settle()
        if status.is_true(cluster.status, status.RANK_TABLE_READY) or status.is_terminal(cluster.status):
            break
    repeated = status.condition(cluster.status, "Failed")
    assert status.is_true(cluster.status, status.RANK_TABLE_READY) or (
        repeated is not None and repeated.reason == "RepeatedFailure"
    )
