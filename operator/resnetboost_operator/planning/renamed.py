"""Renamed: a gang that is not whole, begun by an operator that gave its config map another name.

A pod that waits for objects under the earlier name would wait for ever, because this operator creates them under its
own. Nothing was trained, so the next attempt begins at once and counts towards nothing. A gang that is whole goes on:
its pods have mounted all that they need.
"""

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import devices
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, goodput
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import not_running

_MESSAGE = "an operator of another version began this gang: it begins anew"


def begin_anew(state: ObservedState) -> Plan | None:
    """The plan with the next attempt in place of such a gang; None if the current one can become whole."""
    if not _waits_for_objects(state) or not any(_is_renamed(state, pod.config_map) for pod in state.gang):
        return None
    status = replace(state.status, goodput=goodput.account(state, None, None))
    status = attempts.with_next_attempt(status, state.time)
    status = not_running(status, "Restarting", _MESSAGE, state.time)
    return Plan(status, events=(Event("Normal", "GangRestart", _MESSAGE),), wake_seconds=0.0)


def _waits_for_objects(state: ObservedState) -> bool:
    """Whether pods are not there yet, or wait for their rank table."""
    if state.status.attempt_start_time is None and state.missing and not statuses.is_in_place(state.status):
        return True
    tabled = devices.needs_rank_table(state.job.spec.device, state.stage)
    return tabled and not statuses.is_true(state.status, statuses.RANK_TABLE_READY)


def _is_renamed(state: ObservedState, config_map: str) -> bool:
    own = names.config_map(state.job.name, state.job.uid, state.stage.name, state.pods_attempt)
    return config_map not in ("", own)
