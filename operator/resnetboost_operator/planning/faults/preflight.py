"""The preflight in the status: what the gang found, with the nodes of the ranks it names, and the nodes to avoid."""

from collections.abc import Iterator

from msgspec.structs import replace

from resnetboost_api.status import PolledProgress, PreflightResult, Status, Suspect
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import exclusion
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.planning.conditions import plain

_NODE_LIMIT = 253


def with_result(state: ObservedState) -> Status:
    """The status with the result of the current attempt's preflight, once a rank has reported it.

    Ranks are untrusted: of what they name, only pods of this gang are taken, and their nodes are those observed.
    """
    status, found = state.status, _reported(state)
    known = status.preflight
    if found is None or (known is not None and (known.stage, known.attempt) == (status.stage, status.attempt)):
        return status
    nodes = {pod.index: plain(pod.node)[:_NODE_LIMIT] for pod in (*state.tombstones, *state.gang)}
    suspects = tuple(replace(one, node=nodes[one.index]) for one in found.suspects if one.index in nodes)
    count = min(max(found.suspect_count, len(suspects)), state.count) if suspects else 0
    found = replace(found, suspects=suspects, suspect_count=count)
    return replace(status, preflight=replace(found, stage=status.stage, attempt=status.attempt, time=state.time))


def current(status: Status) -> PreflightResult | None:
    """The result of the current attempt's preflight."""
    found = status.preflight
    return found if found is not None and (found.stage, found.attempt) == (status.stage, status.attempt) else None


def blamed(state: ObservedState, failure: Failure) -> Failure:
    """A failure of the preflight, which all ranks end with, with the first rank that it names as its rank."""
    found = current(state.status)
    if found is None or not found.suspects:
        return failure
    first = found.suspects[0]
    return replace(failure, rank=first.index, node=first.node or None)


def with_exclusions(status: Status, found: PreflightResult | None, state: ObservedState) -> Status:
    """The status with the nodes of all ranks that the preflight named excluded."""
    settings = state.job.spec.failure_policy.node_exclusion
    if found is None:
        return status
    for one in found.suspects:
        if one.node:
            reason = f"the preflight of attempt {found.attempt} named {named(one)}"
            status = exclusion.exclude(status, one.node, reason, state.now, settings)
    return status


def named(found: Suspect) -> str:
    """One rank that was named: rank 3 on node-b (SlowCompute, 62 % of the median)."""
    where = f" on {found.node}" if found.node else ""
    share = f", {found.percent} % of the median" if found.percent is not None else ""
    return f"rank {found.index}{where} ({found.reason}{share})"


def events(before: Status, after: Status) -> Iterator[Event]:
    """An event for a new preflight: a warning if it names ranks."""
    found = after.preflight
    if found is None or found == before.preflight:
        return
    if not found.suspects:
        message = f"the preflight of attempt {found.attempt} took {found.seconds:g} s and named no rank"
        yield Event("Normal", "PreflightPassed", message)
        return
    yield Event("Warning", "PreflightSuspects", f"the preflight of attempt {found.attempt} named {listed(found)}")


def listed(found: PreflightResult) -> str:
    """The ranks that were named, in a sentence."""
    more = found.suspect_count - len(found.suspects)
    others = [readable.plural(more, "other rank")] if more > 0 else []
    names = [*(named(one) for one in found.suspects), *others]
    return readable.listed(names, len(names))


def _reported(state: ObservedState) -> PreflightResult | None:
    """What rank 0 answers, or what a rank wrote at its end: an attempt may end before it is polled."""
    polled = state.observation.progress
    if (
        isinstance(polled, PolledProgress)
        and polled.preflight is not None
        and statuses.is_current(polled, state.status)
    ):
        return polled.preflight
    ended = (pod.termination for pod in (*state.gang, *state.tombstones))
    return next((end.report.preflight for end in ended if end is not None and end.report.preflight is not None), None)
