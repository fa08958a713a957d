"""Attempts in the status: the failure record of one that ended, and the number of the next one."""

import msgspec
from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Attempt, Progress, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import goodput
from resnetboost_operator.planning.conditions import GANG_INCOMPLETE, plain, with_condition
from resnetboost_operator.status import ATTEMPTS_KEPT, MESSAGE_LIMIT

# A process' own; Kubernetes would take any 32 bits.
EXIT_CODES = range(256)
NODE_LIMIT = 253
# Kubelet's tail of a log in place of a termination message.
LOG_TAIL_BYTES = 2048
# Characters of a rank's message in conditions and events, and of an API server's, whose sentences are long.
_RANK_MESSAGE_LIMIT, _SERVER_MESSAGE_LIMIT = 300, 700


def record(failure: Failure, status: Status, end_time: str, rule: str | None = None) -> Attempt:
    """The failure record of the current attempt; `rule` is the one that decides what follows.

    The status' progress already contains what the pods reported.

    Pods are untrusted, and one field that the CRD does not take would keep the whole status from being written.
    """
    known = statuses.current_progress(status)
    if failure.exit_code is not None and failure.exit_code not in EXIT_CODES:
        message = f"exit code {failure.exit_code}: {failure.message}".rstrip(": ")
        failure = msgspec.structs.replace(failure, exit_code=None, message=message)
    return Attempt(
        attempt=status.attempt,
        stage=status.stage,
        reason=failure.failure_class.name,
        start_time=status.attempt_start_time,
        end_time=end_time,
        exit_code=failure.exit_code,
        rank=failure.rank,
        node=plain(failure.node)[:NODE_LIMIT] if failure.node is not None else None,
        last_step=statuses.highest([failure.step, _step(known) if known is not None else None]),
        checkpoint_step=known.checkpoint_step if known is not None else None,
        resumed_step=known.resumed_step if known is not None else None,
        step_seconds=known.step_seconds if known is not None else None,
        rule=rule,
        ranks=status.device_count,
        message=plain(_message(failure)),
    )


def with_record(state: ObservedState, ended: Attempt) -> Status:
    """The status with that record, with the attempt's goodput and with the stage's newest checkpoint.

    Only the newest ATTEMPTS_KEPT records stay, so that the status stays small.
    """
    account = goodput.account(state, ended.reason, ended.checkpoint_step)
    status = replace(state.status, goodput=account)
    saved = statuses.highest([ended.checkpoint_step, statuses.earlier_checkpoint_step(status)])
    status = statuses.with_stage(status, ended.stage, checkpoint_step=saved)
    return replace(status, attempts=(*status.attempts, ended)[-ATTEMPTS_KEPT:])


def with_next_attempt(status: Status, now: str) -> Status:
    """The status with the next attempt's number; everything known of the attempt before is cleared."""
    if statuses.condition(status, statuses.RANK_TABLE_READY) is not None:
        status = with_condition(status, statuses.RANK_TABLE_READY, False, *GANG_INCOMPLETE, now)
    return replace(
        status,
        attempt=status.attempt + 1,
        pods_attempt=None,
        attempt_creation_time=None,
        attempt_start_time=None,
        failure_time=None,
        rank_table=None,
        device_count=None,
    )


def describe(ended: Attempt) -> str:
    """One line for people: attempt 0: rank 1 on node-a ended with Killed (exit code 137) after step 120."""
    who = f"rank {ended.rank}" if ended.rank is not None else "the gang"
    where = f" on {ended.node}" if ended.node else ""
    code = f" (exit code {ended.exit_code})" if ended.exit_code is not None else ""
    step = f" after step {ended.last_step}" if ended.last_step is not None else ""
    return f"attempt {ended.attempt}: {who}{where} ended with {ended.reason}{code}{step}{_why(ended)}"


def _why(ended: Attempt) -> str:
    """The last line of the message; for a killed process that is a log line, which explains nothing."""
    killed = ended.exit_code is not None and ended.exit_code > 128
    lines = ended.message.strip().splitlines()
    if not lines or (killed and ended.reason != failures.OUT_OF_MEMORY.name):
        return ""
    limit = _SERVER_MESSAGE_LIMIT if ended.rank is None else _RANK_MESSAGE_LIMIT
    return f": {readable.shortened(lines[-1], limit)}"


def _step(progress: Progress) -> int | None:
    """None while data is loaded, which ranks report as step 0 of 0: a restart may heal what fails there twice."""
    return progress.step if progress.step or progress.total_steps else None


def _message(failure: Failure) -> str:
    """What a rank reported; for a killed one the signal and the end of its log."""
    if failure.failure_class is not failures.KILLED or failure.exit_code is None:
        return _whole_lines(failure.message, MESSAGE_LIMIT)
    killed = f"killed by signal {failure.exit_code - 128}"
    if not failure.message.strip():
        return killed
    killed += "; the end of its log:\n"
    return killed + _whole_lines(failure.message, MESSAGE_LIMIT - len(killed))


def _whole_lines(text: str, limit: int) -> str:
    """The last whole lines that fit. Kubelet's own cut goes through a line too."""
    tail = text[-limit:]
    if len(tail) == len(text) and len(text.encode()) < LOG_TAIL_BYTES:
        return text
    _, _, lines = tail.partition("\n")
    return lines if lines.strip() else readable.cut(text, limit)
