"""Messages between the operator and the launchers of a gang. `resnetboost_api.connection` carries them.

A launcher is process 1 of a rank's container and starts the rank as its child. The launcher of index 0, the leader,
listens on PORT_LAUNCHER; the others and the operator connect to it. The operator commands the leader, which passes the
command on; launchers report to the leader, which reports the gang. So a restart costs the operator one message,
however many ranks there are.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

# Each end sends Alive this often; an end that hears nothing for SILENCE_SECONDS counts the other one as lost.
ALIVE_SECONDS = 2.0
SILENCE_SECONDS = 8.0
# How many ended ranks a report names: enough to find who failed first.
NAMED_RANKS = 16

Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**20)]


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

    `message`: the rank's termination message, or the end of its log. `time`: unix seconds by its launcher's clock.
    """

    index: Index
    attempt: Attempt
    exit_code: Annotated[int, Meta(ge=0, le=255)]
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
    launchers that are connected, the leader included. `ended`: ranks of that attempt that ended, the first ones first,
    at most NAMED_RANKS of them; `ended_count` counts them all.
    """

    attempt: Attempt
    running: Index
    connected: Index
    ended: Annotated[tuple[RankEnd, ...], Meta(max_length=NAMED_RANKS)] = ()
    ended_count: Index = 0


AnyMessage = HelloOperator | HelloLauncher | Alive | StartAttempt | RankReport | GangReport
