"""The failure that explains the end of a gang, found among its pods and their termination messages."""

from collections.abc import Collection, Sequence

import msgspec

from resnetboost_api import failures
from resnetboost_api.failures import FailureClass
from resnetboost_operator.observed.classify import classify
from resnetboost_operator.observed.pods import Fault, PodView

LOST_MESSAGE = "the pod is gone and left no exit code: it was deleted, or its node was"
DELETED_MESSAGE = "the pod was deleted"
NODE_LOST_MESSAGE = "its node is not ready; nothing was heard of the pod since"


class Failure(msgspec.Struct, frozen=True):
    """The failure that explains a gang's end. `rank` and the rest are None where they are unknown."""

    failure_class: FailureClass
    rank: int | None = None
    node: str | None = None
    exit_code: int | None = None
    message: str = ""
    step: int | None = None
    fault: Fault | None = None


def first_culprit(
    gang: Sequence[PodView],
    missing: Sequence[int],
    silent: Collection[str] = (),
    tombstones: Sequence[PodView] = (),
    *,
    stopping: bool = False,
) -> Failure | None:
    """The failure that explains the others: by class first (communication errors are victims), by time second.

    `missing` are indexes without a pod, `silent` names of nodes whose pods count as lost, `tombstones` pods that are
    gone but whose end was seen. `stopping`: the operator itself deletes the pods, so a deletion explains nothing. Time
    alone would blame the wrong rank: kubelet reports whole seconds, and survivors fail within the same one.
    """
    ended = [pod for pod in gang if _failed(pod)] + [pod for pod in tombstones if pod.phase != "Succeeded"]
    found = [(_failure(pod, stopping), _finished(pod)) for pod in ended]
    found += [(_lost(index, None, LOST_MESSAGE), 0.0) for index in missing]
    unready = [pod for pod in gang if pod.node in silent and pod.termination is None]
    found += [(_lost(pod.index, pod.node, NODE_LOST_MESSAGE), 0.0) for pod in unready]
    if not found:
        return None
    return min(found, key=lambda pair: (pair[0].failure_class.culprit_order, pair[1], pair[0].rank or 0))[0]


def _lost(rank: int, node: str | None, message: str) -> Failure:
    return Failure(failures.POD_LOST, rank=rank, node=node, message=message)


def deleted(gang: Sequence[PodView]) -> Failure | None:
    """A rank that is being deleted and has not ended yet, as the failure that explains victims without a culprit."""
    going = next((pod for pod in gang if pod.deleting and pod.termination is None), None)
    return (
        None
        if going is None
        else Failure(failures.DISRUPTED, going.index, going.node, message=going.disruption or DELETED_MESSAGE)
    )


def is_victim(failure: Failure) -> bool:
    """Whether this failure is probably the consequence of another rank's, which was not seen yet."""
    return failure.failure_class in failures.VICTIMS


def _failed(pod: PodView) -> bool:
    return pod.phase == "Failed" or (pod.termination is not None and pod.termination.exit_code != 0)


def _failure(pod: PodView, stopping: bool) -> Failure:
    ended = pod.termination
    if ended is None:
        failure_class = failures.DISRUPTED if pod.disruption else failures.POD_LOST
        return Failure(failure_class, pod.index, pod.node, message=pod.disruption or LOST_MESSAGE)
    report = ended.report
    failure_class, message = classify(ended.exit_code, ended.reason, report.failure_class), report.message
    disruption = pod.disruption or (DELETED_MESSAGE if pod.deleting and not stopping else "")
    if disruption and failure_class.policy not in ("fail", "roll_back"):  # the exit code is a consequence of it
        failure_class, message = failures.DISRUPTED, f"{disruption}: {message}".rstrip(": ")
    return Failure(failure_class, pod.index, pod.node, ended.exit_code, message, report.step, report.fault)


def _finished(pod: PodView) -> float:
    return pod.termination.finished_at if pod.termination is not None else 0.0
