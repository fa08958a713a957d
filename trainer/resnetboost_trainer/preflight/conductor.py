"""Leads the gang through its preflight: all ranks measure together, exchange what they found, and judge it alike."""

import logging
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from resnetboost_api.status import PreflightResult, Suspect
from resnetboost_trainer.config import Preflight
from resnetboost_trainer.distributed.communicator import Communicator, Group, as_bytes, from_bytes, lost
from resnetboost_trainer.failures import Interrupted, PreflightFailed
from resnetboost_trainer.preflight import links, verdict
from resnetboost_trainer.preflight.verdict import Measurement, Suspicion
from resnetboost_trainer.preflight.workload import Workload

log = logging.getLogger(__name__)

GANG_BYTES = 64 << 20
LINK_BYTES = 8 << 20
MOST_REDUCTIONS = 3
# The status has no room for more.
MOST_SUSPECTS = 8
# What ranks exchange are whole numbers: bytes and operations per second, and a norm of 10^7 or so in millionths.
_FRACTION = 1e6


class Outcome(NamedTuple):
    """What the gang found, and what this rank measured."""

    result: PreflightResult
    own: Measurement


class Conductor:
    """Runs the preflight of one gang. A collective; every rank calls it at the same place.

    `asked` says whether this rank was asked to stop.
    """

    def __init__(self, rule: Preflight, communicator: Communicator, index: int, asked: Callable[[], bool]) -> None:
        self._rule, self._gang, self._index, self._asked_to_stop = rule, communicator, index, asked
        self._workload = Workload()
        self._node, self._pairs = self._groups()

        self._gang_rate, self._reduced = 0.0, 0

    def run(self) -> Outcome:
        """Measure, twice if a rank looks slow. Raises Interrupted on all ranks if one was asked to stop meanwhile."""
        began = time.monotonic()
        first = self._round(began + self._rule.seconds / 2)
        last, slow = first, self._slow(first)
        wrong = self._wrong(first)
        if slow and self._leader_says(time.monotonic() - began < self._rule.seconds / 2):
            last = self._round(began + self._rule.seconds)
            slow, wrong = verdict.twice(slow, self._slow(last)), wrong or self._wrong(last)
        for group in (self._node, *self._pairs):
            self._gang.dissolve(group)
        named = {one.rank for one in wrong}
        suspicions = (*wrong, *(one for one in slow if one.rank not in named))
        return Outcome(self._result(last, suspicions, time.monotonic() - began), last[self._gang.rank])

    def _groups(self) -> tuple[Group, list[Group]]:
        """This rank's node and its pairs; every rank creates its groups in the order of the rounds."""
        rank, size = self._gang.rank, self._gang.size
        node = self._gang.group(links.node_of(rank, size, self._rule.ranks_per_node))
        rounds = links.rounds(size, self._rule.ranks_per_node)
        mine = [pair for pairs in rounds for pair in pairs if rank in pair]
        return node, [self._gang.group(pair) for pair in mine]

    def _round(self, until: float) -> tuple[Measurement, ...]:
        """Measure once. Every rank takes part in the same collectives, however slow it is."""
        self._agree_to_go_on()
        halfway = (time.monotonic() + until) / 2
        computed = self._workload.measure(halfway, self._asked_to_stop)
        self._agree_to_go_on()
        if not self._gang_rate:  # the first time: it is told, and not compared
            self._gang_rate, self._reduced = self._reduce(self._gang, GANG_BYTES, until)
        node_rate = self._reduce(self._node, LINK_BYTES, until)[0] if self._node.size > 1 else 0.0
        pair_rates = [self._reduce(pair, LINK_BYTES, until)[0] for pair in self._pairs]
        own = Measurement(
            index=self._index,
            compute=computed.rate,
            link=max(pair_rates, default=0.0),
            node=node_rate,
            digests=(*computed.digests, self._reduced),
            steady=computed.steady,
            norm=computed.norm,
        )
        rows = self._gang.gather(as_bytes(_numbers(own)))
        return tuple(_measurement(from_bytes(row)) for row in rows)

    def _agree_to_go_on(self) -> None:
        """Wait for all ranks, so that they measure together. Raises Interrupted if one was asked to stop."""
        asked = self._gang.sum(np.array([float(self._asked_to_stop())], np.float32))
        if asked[0]:
            self._gang.leave()
            raise Interrupted("asked to stop: every rank stopped in the preflight, before the first step")

    def _leader_says(self, choice: bool) -> bool:
        return bool(self._gang.broadcast_integers([int(choice)])[0])

    def _reduce(self, group: Communicator | Group, size_bytes: int, until: float) -> tuple[float, int]:
        """Rate of the group's all-reduce in MB/s, and what the sum hashes to. How often is the first rank's choice."""
        if group.size == 1:
            return 0.0, 0
        tensor = Tensor(np.full(size_bytes // 4, self._gang.rank + 1, np.float32))
        first, _ = _timed(group, tensor)  # connects
        left = max(0.0, until - time.monotonic())
        times = min(MOST_REDUCTIONS, 1 + int(left / 4 / first))
        times = int(group.sum(np.array([times if _place(group) == 0 else 0], np.float32))[0])
        measured = [_timed(group, tensor) for _ in range(times)]
        summed = measured[-1][1].asnumpy()
        return size_bytes / statistics.median(seconds for seconds, _ in measured) / 1e6, zlib.crc32(summed)

    def _slow(self, found: Sequence[Measurement]) -> tuple[Suspicion, ...]:
        return verdict.slow(found, self._rule.compute_below, self._rule.collective_below)

    def _wrong(self, found: Sequence[Measurement]) -> tuple[Suspicion, ...]:
        return verdict.wrong(found, (*self._workload.known, None))

    def _result(self, found: Sequence[Measurement], suspicions: Sequence[Suspicion], seconds: float) -> PreflightResult:
        computed, linked = [one.compute for one in found], [one.link for one in found]
        indexes = [one.index for one in found]
        suspects = tuple(
            Suspect(
                index=indexes[one.rank],
                rank=one.rank,
                reason=one.reason,
                percent=None if one.share is None else round(100 * one.share),
            )
            for one in suspicions[:MOST_SUSPECTS]
        )
        return PreflightResult(
            seconds=round(seconds, 1),
            compute_median=round(statistics.median(computed), 1),
            compute_lowest=round(min(computed), 1),
            slowest_rank=indexes[computed.index(min(computed))],
            collective_rate=round(self._gang_rate, 1) if self._gang.size > 1 else None,
            link_median=round(statistics.median(linked), 1) if max(linked) else None,
            link_lowest=round(min(linked), 1) if max(linked) else None,
            suspects=suspects,
            suspect_count=len(suspicions),
        )


def _place(group: Communicator | Group) -> int:
    """This rank's place in the group."""
    return group.place if isinstance(group, Group) else group.rank


def _timed(group: Communicator | Group, tensor: Tensor) -> tuple[float, Tensor]:
    began = time.perf_counter()
    try:
        summed = group.all_reduce(tensor)
        summed[:1].asnumpy()  # waits for the device, and copies next to nothing
    except RuntimeError as error:
        raise lost(error) from error
    return time.perf_counter() - began, summed


def _numbers(own: Measurement) -> list[int]:
    """A measurement as whole numbers below 2^63; a norm that is no number becomes the largest."""
    norm = own.norm * _FRACTION
    norm = min(norm, 2.0**62) if norm == norm else 2.0**62
    rates = (int(rate * _FRACTION) for rate in (own.compute, own.link, own.node))
    return [own.index, *rates, *own.digests, int(own.steady), int(norm)]


def _measurement(numbers: Sequence[int]) -> Measurement:
    index, compute, link, node, *digests, steady, norm = numbers
    return Measurement(
        index=index,
        compute=compute / _FRACTION,
        link=link / _FRACTION,
        node=node / _FRACTION,
        digests=tuple(digests),
        steady=bool(steady),
        norm=norm / _FRACTION,
    )


def judge(result: PreflightResult, rule: Preflight, gang: Communicator) -> None:
    """Log the result on the leader. Raises PreflightFailed on all ranks if the job is to go on without those named."""
    if gang.leads:
        log.info("preflight of %d ranks took %.1f s: %s", gang.size, result.seconds, summary(result))
    if not result.suspects:
        return
    message = f"the preflight named {named(result)}"
    if rule.action == "Exclude":
        gang.leave()
        raise PreflightFailed(message, result)
    if gang.leads:
        log.warning("%s; preflight.action is Report: the training begins nevertheless", message)


def summary(result: PreflightResult) -> str:
    """Rates of the gang, and what a gang of one could find out."""
    rates = f"median {result.compute_median} GFLOP/s, lowest {result.compute_lowest} (index {result.slowest_rank})"
    if result.collective_rate is None:
        steady = "" if result.suspects else ", but its results were the same every time"
        return f"{rates}; one rank has nothing to compare with{steady}"
    neighbours = f", with a neighbour {result.link_median} MB/s" if result.link_median is not None else ""
    return f"{rates}; all-reduce {result.collective_rate} MB/s{neighbours}"


def named(result: PreflightResult) -> str:
    """The suspects as a list for people."""
    return ", ".join(_one(found) for found in result.suspects) + (
        f" and {more} more" if (more := result.suspect_count - len(result.suspects)) > 0 else ""
    )


def _one(found: Suspect) -> str:
    rank = f", rank {found.rank}" if found.rank != found.index else ""
    share = f" at {found.percent} % of the median" if found.percent is not None else ""
    return f"index {found.index}{rank} ({found.reason}{share})"
