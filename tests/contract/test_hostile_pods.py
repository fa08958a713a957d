"""The API server accepts the status written for pods and nodes with hostile or malformed statuses.

A refused status would block every restart and deadline of the job.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api import names
from resnetboost_operator import status
from resnetboost_operator.observed.state import Obstacle
from resnetboost_operator.validation import schema
from support.examples import examples
from support.simulation import Cluster, job

CONTROLS = "\x00\x07\x1b[31m\r\x7f\x85\u200b\u202e\u2028\ufeff"
TEXT = st.one_of(
    st.sampled_from(
        ["", " ", "Creating sandbox", "x" * 70_000, CONTROLS, "-", ":", "é", "9lives", "a\nb", '{"class":1}']
    ),
    st.text(max_size=40),
    st.text(alphabet=CONTROLS + "aZ0 ,:_-", max_size=40),
)
CODES = st.one_of(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1))
WAITING = st.fixed_dictionaries(
    {"state": st.fixed_dictionaries({"waiting": st.fixed_dictionaries({}, optional={"reason": TEXT, "message": TEXT})})}
)
TERMINATED = st.fixed_dictionaries(
    {
        "state": st.fixed_dictionaries(
            {"terminated": st.fixed_dictionaries({"exitCode": CODES}, optional={"reason": TEXT, "message": TEXT})}
        )
    }
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["DisruptionTarget", "PodScheduled", "Ready"]),
        "status": st.sampled_from(["True", "False"]),
    },
    optional={"reason": TEXT, "message": TEXT},
)
POD = st.fixed_dictionaries(
    {"phase": st.sampled_from(["Pending", "Running", "Failed", "Unknown"])},
    optional={
        "reason": TEXT,
        "message": TEXT,
        "podIP": TEXT,
        "conditions": st.lists(CONDITION, max_size=2),
        "container": WAITING | TERMINATED,
    },
)


def tell(pod: dict[str, Any], told: dict[str, Any]) -> None:
    container = {"name": names.CONTAINER, "ready": False, **told.get("container", {})}
    rest = {key: value for key, value in told.items() if key != "container"}
    pod["status"] = {**rest, "containerStatuses": [container]}


@examples(300)
@given(st.tuples(POD, POD), TEXT, TEXT, st.booleans())
def test_the_status_is_accepted_and_has_no_control_characters(
    told: tuple[dict[str, Any], dict[str, Any]], node: str, refusal: str, whole: bool
) -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0}))
    cluster.step()
    if whole:
        cluster.step()
    for index, pod in enumerate(told):
        tell(cluster.rank(index), pod)
        cluster.rank(index)["spec"]["nodeName"] = node
    cluster.obstacle = Obstacle(refusal, permanent=False)
    for _ in range(3):
        written = status.to_dict(cluster.plan().status)
        assert schema.check_status(written) == []
        assert [text for text in texts(written) if set(text) & set(CONTROLS) - set("[31m")] == []
        cluster.step()
        cluster.now += 61


def texts(value: Any) -> list[str]:
    """Every text in the object."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for child in children for text in texts(child)]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("Creating sandbox", "CreatingSandbox"),
        ("ImagePullBackOff", "ImagePullBackOff"),
        ("failed to create: no space", "failedToCreate:NoSpace"),
        ("1st:try:", "st:try"),
        ("…", "Unknown"),
    ],
    ids=str,
)
def test_a_reason_of_several_words_becomes_one(told: str, reason: str) -> None:
    cluster = Cluster(job())
    cluster.settle()
    for pod in cluster.gang():
        tell(pod, {"phase": "Pending", "container": {"state": {"waiting": {"reason": told, "message": "wait"}}}})
        pod["spec"]["nodeName"] = "node-0"
    cluster.settle()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert running.reason == reason
    assert told in running.message


def test_an_exit_code_beyond_a_process_own_is_told_in_words() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.exit(1, -1073741819)
    cluster.settle()
    (record,) = cluster.status.attempts
    assert (record.exit_code, record.message, cluster.status.attempt) == (None, "exit code -1073741819", 1)
