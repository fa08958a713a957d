"""Slow ranks: since when and where, the condition Straggling, and the replacement of a node.

Rank 0 reports ranks that compute too long, with hysteresis. Here they get the time of their first report, by the
operator's clock: it stands in `status.progress`, so that another operator goes on counting.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Status, Straggler
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.planning.conditions import plain, with_condition
from resnetboost_operator.ranktable import annotations
from resnetboost_operator.ranktable.annotations import BoundPod, Refusal

# How long after a replacement a job gets no other one.
REPLACE_SECONDS = 3600.0
NODE_LIMIT = 253
_NONE = ("NoSlowRank", "no rank is known to be slow")


def reported(
    told: Sequence[Straggler], known: Sequence[Straggler], gang: Sequence[PodView], now: float
) -> tuple[Straggler, ...]:
    """The slow ranks that rank 0 told of, with since when, node and device. Untrusted: whoever has no pod is left out.

    A rank that was well in between, also unseen by this operator, has another `since_step`: its time begins anew.
    """
    by_index = {pod.index: pod for pod in gang}
    before = {(found.rank, found.since_step): found.since for found in known}
    first = {found.rank: found for found in reversed(told) if found.index in by_index and found.median > 0}
    return tuple(
        replace(
            found,
            since=before.get((found.rank, found.since_step)) or pods.timestamp(now),
            node=plain(by_index[found.index].node)[:NODE_LIMIT],
            device=_device(by_index[found.index]),
        )
        for found in sorted(first.values(), key=lambda found: (-found.seconds, found.rank))
    )


def _device(pod: PodView) -> int | None:
    """Number of the pod's device on its node, which only Ascend's device plugin tells."""
    try:
        return annotations.read(BoundPod(pod.name, pod.index, pod.node, pod.devices)).device if pod.devices else None
    except Refusal:
        return None


def lasting(status: Status, for_seconds: float) -> tuple[Straggler, ...]:
    """The ranks of the current attempt that were slow for so long, up to the last news of a step: silence proves
    nothing.
    """
    progress = statuses.current_progress(status)
    if progress is None:
        return ()
    heard = pods.seconds(progress.heartbeat_time)
    return tuple(found for found in progress.stragglers if heard - pods.seconds(found.since) >= for_seconds)


def with_straggling(state: ObservedState, status: Status) -> Status:
    """The status to be written, with the condition Straggling. A job that never had a slow rank does not have it.

    Its message changes only with the ranks it names: no numbers that move with every report.
    """
    over = statuses.is_terminal(status) or not statuses.is_true(status, "Running")
    slow = () if over else lasting(status, state.job.spec.failure_policy.straggler.for_seconds)
    if slow:
        message = f"{_described(state, slow)}, and every step waits for it{_not_replaced(state, slow)}"
        return with_condition(status, statuses.STRAGGLING, True, "SlowRank", message, state.time)
    if not statuses.is_true(status, statuses.STRAGGLING):
        return status
    return with_condition(status, statuses.STRAGGLING, False, *_NONE, state.time)


def _described(state: ObservedState, slow: Sequence[Straggler]) -> str:
    """Which ranks are slow, where and since when: rank 1 (digits-base-0-1 on node-b, device 5) is slow since ..."""
    shown = [f"rank {found.rank} ({_place(state, found)}) is slow since {found.since}" for found in slow[:3]]
    more = f" and {len(slow) - 3} more are" if len(slow) > 3 else ""
    return ", ".join(shown) + more


def _place(state: ObservedState, found: Straggler) -> str:
    pod = next((pod.name for pod in state.gang if pod.index == found.index), f"index {found.index}")
    node = f" on {found.node}" if found.node else ""
    return f"{pod}{node}{f', device {found.device}' if found.device is not None else ''}"


def events(before: Status, after: Status) -> Iterator[Event]:
    """An event for each change of the condition: which ranks are slow, and that none is any more."""
    known, found = statuses.condition(before, statuses.STRAGGLING), statuses.condition(after, statuses.STRAGGLING)
    if found is None or found == known:
        return
    if found.status == "True" and (known is None or known.message != found.message):
        yield Event("Warning", statuses.STRAGGLING, found.message)
    if found.status == "False" and after.phase == "Running" and before.attempt == after.attempt:
        yield Event("Normal", "NotStraggling", found.message)


def replacement(state: ObservedState) -> Failure | None:
    """The end of an attempt whose slowest rank's node is to be replaced; None if nothing is to be done."""
    policy = state.job.spec.failure_policy.straggler
    slow = lasting(state.status, policy.for_seconds)
    if policy.action != "Replace" or not slow or not _is_whole(state) or _not_replaced(state, slow):
        return None
    worst = slow[0]
    message = (
        f"{_described(state, slow[:1])}: {readable.quantity(1000 * worst.seconds)} ms to compute "
        f"a step, {worst.seconds / worst.median:.2f} times the gang's median; {worst.node} is replaced"
    )
    return Failure(failures.STRAGGLER, rank=worst.index, node=worst.node, message=message)


def _is_whole(state: ObservedState) -> bool:
    """Whether every rank runs: nobody has finished, and no pod is going."""
    alive = [pod for pod in state.gang if pod.phase == "Running" and pod.termination is None and not pod.deleting]
    return len(alive) == state.count


def _not_replaced(state: ObservedState, slow: Sequence[Straggler]) -> str:
    """Why a node is not replaced although its job asks for that, to follow the condition's message; '' otherwise."""
    if state.job.spec.failure_policy.straggler.action != "Replace":
        return ""
    found = {pod.node for pod in state.gang}
    if not slow[0].node:
        return "; nothing is replaced, because the ranks have no nodes here"
    if len(found) == 1:
        return f"; {slow[0].node} is not replaced, because the whole gang is on it"
    if not state.keeps_checkpoints:
        return f"; {slow[0].node} is not replaced: without checkpoint.claimName or url the training would begin again"
    ends = [pods.seconds(one.end_time) for one in state.status.attempts if one.reason == failures.STRAGGLER.name]
    due = max(ends, default=0.0) + REPLACE_SECONDS
    return f"; {slow[0].node} is not replaced before {pods.timestamp(due)}, once an hour" if due > state.now else ""
