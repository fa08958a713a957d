"""Messages between the operator and the launchers of a gang. `resnetboost_api.connection` carries them.

A launcher is process 1 of a rank's container and starts the rank as its child. The launcher of index 0, the leader,
listens on PORT_LAUNCHER; the others and the operator connect to it. The operator commands the leader, which passes the
command on; launchers report to the leader, which reports the gang. So a restart costs the operator one message,
however many ranks there are.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from resnetboost_api import failures

# Each end sends Alive this often; an end that hears nothing for SILENCE_SECONDS counts the other one as lost.
ALIVE_SECONDS = 2.0
SILENCE_SECONDS = 8.0
# How many ended ranks a report has with their messages: enough to find who failed first.
NAMED_RANKS = 16

Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**20)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]


class Message(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="type"):
    """Base of all messages. They are untrusted: sizes and numbers have bounds."""


class HelloOperator(Message, frozen=True, tag="operator"):
    """First message of an operator's connection."""


class HelloLauncher(Message, frozen=True, tag="launcher"):
    """First message of a launcher's connection to the leader."""

    index: Index


class Alive(Message, frozen=True, tag="alive"):
    """Nothing but a sign of life."""


class StartAttempt(Message, frozen=True, tag="start"):
    """Command: end the rank of any earlier attempt and, once it is reaped, start the rank of this one.

    `config` is the trainer's configuration of the attempt, `coordinator_port` where its ranks meet. The rank starts
    `delay_seconds` after the command came (the back-off); that of an earlier attempt ends at once. A launcher ignores
    an attempt that is not above its own.
    """

    attempt: Attempt
    config: dict[str, Any]
    coordinator_port: Annotated[int, Meta(ge=1, le=65535)]
    delay_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class RankEnd(Message, frozen=True, tag="rankEnd"):
    """How a rank ended. `exit_code` is 128 plus the signal's number for a killed one, as kubelet has it.

    `message`: the rank's termination message, or for a rank that failed without one the end of its log. `time`: unix
    seconds by its launcher's clock.
    """

    index: Index
    attempt: Attempt
    exit_code: ExitCode
    message: Annotated[str, Meta(max_length=4096)] = ""
    time: float = 0.0


class RankReport(Message, frozen=True, tag="rank"):
    """A launcher's report to the leader, after every change: its newest attempt, and whether the rank runs or ended.

    Neither: the rank waits for the end of the back-off.
    """

    index: Index
    attempt: Attempt
    running: bool = False
    end: RankEnd | None = None


class GangReport(Message, frozen=True, tag="gang"):
    """The leader's report to the operator, at once after the greeting and after every change.

    `attempt`: the newest that was announced to the leader. `running`: ranks of that attempt that run. `connected`:
    launchers that are connected, the leader included. `ended`: ranks of that attempt that ended, those that may explain
    the others first, at most NAMED_RANKS of them; `others_ended`: index and exit code of all the others.
    """

    attempt: Attempt
    running: Index
    connected: Index
    ended: Annotated[tuple[RankEnd, ...], Meta(max_length=NAMED_RANKS)] = ()
    others_ended: tuple[tuple[Index, ExitCode], ...] = ()


def gang_report(attempt: int, running: int, connected: int, ends: Iterable[RankEnd]) -> GangReport:
    """The report of a gang with these ends, in the operator's order: by class first, because clocks differ."""
    found = sorted(ends, key=lambda end: (failures.of_exit_code(end.exit_code).culprit_order, end.time, end.index))
    others = tuple((end.index, end.exit_code) for end in found[NAMED_RANKS:])
    return GangReport(attempt, running, connected, tuple(found[:NAMED_RANKS]), others)


AnyMessage = HelloOperator | HelloLauncher | Alive | StartAttempt | RankReport | GangReport
