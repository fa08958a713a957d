"""Who brought a gang down and what is known about it; what follows from it is the plan's business."""

from collections.abc import Collection, Sequence

import msgspec

from resnetboost_operator import failures as verdicts
from resnetboost_operator import readable
from resnetboost_operator.failures import Verdict
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.status import MESSAGE_LIMIT, Attempt, Progress, Status, plain

LOST_MESSAGE = "the pod is gone and left no exit code: it was deleted, or its node was"
# A process' own; Kubernetes would take any 32 bits.
EXIT_CODES = range(256)
NODE_LIMIT = 253
DELETED_MESSAGE = "the pod was deleted"
# Kubelet's tail of a log in place of a termination message.
LOG_TAIL_BYTES = 2048
NODE_LOST_MESSAGE = "its node is not ready; nothing was heard of the pod since"


class Failure(msgspec.Struct, frozen=True):
    """The failure that explains a gang's end. `rank` and the rest are None where nobody can tell."""

    verdict: Verdict
    rank: int | None = None
    node: str | None = None
    exit_code: int | None = None
    message: str = ""
    step: int | None = None


def first_culprit(
    gang: Sequence[PodView],
    missing: Sequence[int],
    silent: Collection[str] = (),
    departed: Sequence[PodView] = (),
    *,
    stopping: bool = False,
) -> Failure | None:
    """The failure that explains the others: by class first (communication errors are victims), by time second.

    `missing` are indexes without a pod, `silent` names of nodes whose pods count as lost, `departed` pods that are gone
    but whose end was seen. `stopping`: the operator itself deletes the pods, and how they end is their own doing. Time
    alone would blame the wrong rank: kubelet tells whole seconds, and survivors fail within the same one.
    """
    ended = [pod for pod in gang if _failed(pod)] + [pod for pod in departed if pod.phase != "Succeeded"]
    failures = [(_failure(pod, stopping), _finished(pod)) for pod in ended]
    failures += [(_lost(index, None, LOST_MESSAGE), 0.0) for index in missing]
    unheard = [pod for pod in gang if pod.node in silent and pod.termination is None]
    failures += [(_lost(pod.index, pod.node, NODE_LOST_MESSAGE), 0.0) for pod in unheard]
    if not failures:
        return None
    return min(failures, key=lambda pair: (pair[0].verdict.culprit_order, pair[1], pair[0].rank or 0))[0]


def _lost(rank: int, node: str | None, message: str) -> Failure:
    return Failure(verdicts.POD_LOST, rank=rank, node=node, message=message)


def deleted(gang: Sequence[PodView]) -> Failure | None:
    """What explains victims whom nobody else explains: a rank that was deleted and has not ended yet."""
    going = next((pod for pod in gang if pod.deleting and pod.termination is None), None)
    return None if going is None else Failure(verdicts.DISRUPTED, going.index, going.node, message=DELETED_MESSAGE)


def is_victim(failure: Failure) -> bool:
    """Whether somebody else's failure, not seen yet, probably explains this one."""
    return failure.verdict in (verdicts.COMMUNICATION_ERROR, verdicts.INTERRUPTED)


def attempt(failure: Failure, status: Status, end_time: str) -> Attempt:
    """The record of the current attempt's end. The status' progress already knows what the pods reported.

    What comes from pods may be anything; a single field that the CRD does not take would keep the whole status out.
    """
    progress = status.progress or Progress()
    known = current(progress, status)
    if failure.exit_code is not None and failure.exit_code not in EXIT_CODES:
        message = f"exit code {failure.exit_code}: {failure.message}".rstrip(": ")
        failure = msgspec.structs.replace(failure, exit_code=None, message=message)
    return Attempt(
        attempt=status.attempt,
        stage=status.stage,
        reason=failure.verdict.name,
        start_time=status.attempt_start_time,
        end_time=end_time,
        exit_code=failure.exit_code,
        rank=failure.rank,
        node=plain(failure.node)[:NODE_LIMIT] if failure.node is not None else None,
        last_step=highest([failure.step, _step(progress) if known else None]),
        checkpoint_step=progress.checkpoint_step if known else None,
        resumed_step=progress.resumed_step if known else None,
        step_seconds=progress.step_seconds if known else None,
        message=plain(_last_words(failure)),
    )


def _last_words(failure: Failure) -> str:
    """What a rank said; of one that was killed the end of its log, which says what it did and not why it ended."""
    if failure.verdict is not verdicts.KILLED or failure.exit_code is None:
        return _whole_lines(failure.message, MESSAGE_LIMIT)
    killed = f"killed by signal {failure.exit_code - 128}"
    if not failure.message.strip():
        return killed
    killed += "; the end of its log:\n"
    return killed + _whole_lines(failure.message, MESSAGE_LIMIT - len(killed))


def _whole_lines(text: str, limit: int) -> str:
    """The last lines that fit. Kubelet's own cut goes through a line too."""
    tail = text[-limit:]
    if len(tail) == len(text) and len(text.encode()) < LOG_TAIL_BYTES:
        return text
    _, _, lines = tail.partition("\n")
    return lines if lines.strip() else readable.cut(text, limit)


def _step(progress: Progress) -> int | None:
    """None while data is loaded, which ranks tell as step 0 of 0: what fails there twice a restart may still heal."""
    return progress.step if progress.step or progress.total_steps else None


def current(progress: Progress | None, status: Status) -> bool:
    """Whether a progress belongs to the current attempt."""
    return progress is not None and (progress.stage, progress.attempt) == (status.stage, status.attempt)


def _failed(pod: PodView) -> bool:
    return pod.phase == "Failed" or (pod.termination is not None and pod.termination.exit_code != 0)


def _failure(pod: PodView, stopping: bool) -> Failure:
    ended = pod.termination
    if ended is None:
        verdict = verdicts.DISRUPTED if pod.disruption else verdicts.POD_LOST
        return Failure(verdict, pod.index, pod.node, message=pod.disruption or LOST_MESSAGE)
    report = ended.report
    verdict, message = verdicts.classify(ended.exit_code, ended.reason, report.verdict), report.message
    disruption = pod.disruption or (DELETED_MESSAGE if pod.deleting and not stopping else "")
    if disruption and verdict.policy != "fail":  # what kubelet or the ranks made of it is its consequence
        verdict, message = verdicts.DISRUPTED, f"{disruption}: {message}".rstrip(": ")
    return Failure(verdict, pod.index, pod.node, ended.exit_code, message, report.step)


def _finished(pod: PodView) -> float:
    return pod.termination.finished_at if pod.termination is not None else 0.0


def earlier_checkpoint_step(status: Status) -> int | None:
    """Step of the newest checkpoint that the current stage's ended attempts are known to have left."""
    kept = [stage.checkpoint_step for stage in status.stages if stage.name == status.stage]
    # The records alone have it where an operator before this one wrote them.
    return highest([*kept, *(record.checkpoint_step for record in status.attempts if record.stage == status.stage)])


def highest(steps: Sequence[int | None]) -> int | None:
    """The furthest of the steps that are known."""
    return max((step for step in steps if step is not None), default=None)
