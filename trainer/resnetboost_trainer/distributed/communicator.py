"""Joins the gang and provides the few collectives that training needs, on NumPy arrays.

Only operators every MindSpore backend has are used (the CPU has no Send, Receive or ReduceScatter), and callers
fuse tensors into flat buffers: a collective costs about a millisecond whatever its size.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from resnetboost_trainer.config import Environment
from resnetboost_trainer.distributed import coordinator
from resnetboost_trainer.distributed.default_sigterm import default_sigterm
from resnetboost_trainer.distributed.short_sleeps import short_sleeps
from resnetboost_trainer.failures import CommunicationError

Floats = npt.NDArray[np.float32]

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT_SECONDS = 600.0
RETRY_SECONDS, CONNECT_SECONDS = 0.05, 0.2

# A thread of MindSpore's acknowledges what a rank received after the collective has returned. Should the process end
# sooner, rank 0 waits half a minute for it: two gangs in ten of empty ranks did, none in thirty with this pause.
LINGER_SECONDS = 0.5

GROUP_NAME_LIMIT = 127  # HCCL's


class Rendezvous:
    """The gang's meeting point. Start it before importing MindSpore: rank 0's child process imports it meanwhile."""

    def __init__(self, environment: Environment) -> None:
        """Resolve the coordinator's name (MindSpore takes addresses only) and, as rank 0, start it."""
        self.process: subprocess.Popen[bytes] | None = None
        if environment.coordinator is None:
            return
        variables = scheduler_variables(environment.coordinator, environment.world_size)
        os.environ.update(variables, MS_ROLE="MS_WORKER", MS_NODE_ID=str(environment.rank))
        for bound in ("LOWER", "UPPER"):  # MindSpore's own 3 to 5 s double the time a small gang takes to meet
            os.environ.setdefault(f"MS_RETRY_INTERVAL_{bound}", "1")
        # How late a rank may come to a collective. MindSpore's 30 s is less than a graph takes to compile on a busy
        # node; a dead rank is noticed by whoever started it, long before.
        os.environ.setdefault("MS_CPU_COMM_OP_TIMEOUT", "120")
        if environment.rank == 0 and not environment.coordinator_runs:
            self.process = coordinator.start(variables)
            atexit.register(self.close)

    def close(self) -> None:
        """End the coordinator. No rank may have another collective."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def scheduler_variables(address: tuple[str, int], world_size: int) -> dict[str, str]:
    """MindSpore's variables for a gang that meets at that host and port. Raises CommunicationError as `resolve`."""
    host, port = address
    return {"MS_SCHED_HOST": resolve(host), "MS_SCHED_PORT": str(port), "MS_WORKER_NUM": str(world_size)}


def resolve(host: str, timeout_seconds: float = RESOLVE_TIMEOUT_SECONDS) -> str:
    """Address of the coordinator. Retries, since its name resolves only once rank 0's pod has an address.

    Raises CommunicationError naming the host when it stays unknown.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return str(socket.getaddrinfo(host, None, family=socket.AF_INET)[0][4][0])
        except OSError as error:
            if time.monotonic() >= deadline:
                reason = f"the coordinator's name {host} does not resolve: {error.strerror}"
                raise CommunicationError(reason) from error
            time.sleep(RETRY_SECONDS)


def await_coordinator(timeout_seconds: float = RESOLVE_TIMEOUT_SECONDS) -> None:
    """Return when the coordinator accepts connections: MindSpore waits half a minute after a refusal.

    Raises CommunicationError naming its address.
    """
    address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection(address, timeout=CONNECT_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise CommunicationError(f"the coordinator at {address[0]}:{address[1]} does not answer") from error
            time.sleep(RETRY_SECONDS)


class Communicator:
    """Collectives over the whole gang, on numpy arrays; with one rank they are the identity."""

    def __init__(self, rank: int, size: int, joined: bool = False, leader: int = 0) -> None:
        """Join the gang (blocks until every rank is there), unless this process has. Raises CommunicationError.

        The `leader` has the checkpoints, and does what only one rank does.
        """
        self.rank, self.size, self.leader = rank, size, leader
        self._groups: dict[tuple[int, ...], Group] = {}
        if size > 1:
            if not joined:
                self._join()
            self._prepare()

    @classmethod
    def present(cls) -> "Communicator":
        """The gang that this process joined by `mindspore.communication.init()`; a gang of one if it did not."""
        from mindspore.communication import GlobalComm, get_group_size, get_rank

        return cls(get_rank(), get_group_size(), joined=True) if GlobalComm.INITED else cls(0, 1)

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader."""
        return self.rank == self.leader

    def _join(self) -> None:
        from mindspore import communication, get_context

        started = time.monotonic()
        if "MS_SCHED_HOST" in os.environ:  # or the ranks meet by a rank table
            await_coordinator()
        try:
            # A device's own library was never tried with signals.
            sleeps = short_sleeps() if get_context("device_target") == "CPU" else contextlib.nullcontext()
            with default_sigterm(), sleeps:
                communication.init()
        except RuntimeError as error:
            raise CommunicationError(f"the gang of {self.size} ranks did not come together: {_brief(error)}") from error
        log.info("rank %d has joined its gang of %d in %.1f s", self.rank, self.size, time.monotonic() - started)

    def _prepare(self) -> None:
        from mindspore import ops

        self._all_reduce, self._all_gather = ops.AllReduce(), ops.AllGather()
        self._broadcast = ops.Broadcast(self.leader)

    @property
    def all_reduce(self) -> Callable[[Any], Any]:
        """The sum on tensors of the device, without copies to the host; the identity among one."""
        return (lambda tensor: tensor) if self.size == 1 else self._all_reduce

    def dissolve(self, group: "Group") -> None:
        """Give back what a device keeps for a group, some 400 MB each on Ascend. A CPU's costs nothing and stays."""
        from mindspore import communication, get_context

        if group.name and get_context("device_target") != "CPU":
            self._groups.pop(group.ranks)
            communication.destroy_group(group.name)

    def sum(self, values: Floats) -> Floats:
        """Sum over the ranks, the same bits on each of them."""
        return values if self.size == 1 else _run(self._all_reduce, values)

    def mean(self, values: Floats) -> Floats:
        """Mean over the ranks, the same bits on each of them."""
        return values if self.size == 1 else self.sum(values) / np.float32(self.size)

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        """The leader's integers, from 0 to below 2^63, on every rank; a float32 is exact only up to 2^24."""
        return from_bytes(self.broadcast(as_bytes(values)))

    def broadcast(self, values: Floats) -> Floats:
        """The leader's values on every rank, bit for bit (shapes must agree)."""
        return values if self.size == 1 else _run(lambda tensor: self._broadcast((tensor,))[0], values)

    def gather(self, values: Floats) -> Floats:
        """Every rank's values, stacked: shape (n,) -> (size, n)."""
        return values[None] if self.size == 1 else _run(self._all_gather, values[None])

    def group(self, ranks: Sequence[int]) -> "Group":
        """A group of ascending ranks that includes this one. A collective of the group, the first time."""
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = Group(self, key)
        return self._groups[key]

    def leave(self) -> None:
        """Wait for the others a last time; no collective may follow.

        Never fails: the work is done, and a rank that does not answer reports its failure itself.
        """
        try:
            self.sum(np.zeros(1, np.float32))
        except CommunicationError as error:
            log.info("rank %d leaves without hearing from all others: %s", self.rank, error)
        if not self.leads:
            time.sleep(LINGER_SECONDS)


class Group:
    """Collectives among some ranks of a gang, on numpy arrays; among one they are the identity."""

    def __init__(self, communicator: Communicator, ranks: tuple[int, ...]) -> None:
        """`ranks` ascend and include this rank. Raises CommunicationError."""
        self.ranks, self.size, self.place = ranks, len(ranks), ranks.index(communicator.rank)
        self._gather: Callable[[Floats], Floats] = self._placed
        self.name = ""
        self.all_reduce = communicator.all_reduce
        self._rows: dict[int, Floats] = {}  # by size: zeros but for this rank's row
        if self.size == communicator.size:
            self._sum, self._gather = communicator.sum, communicator.gather
        elif self.size > 1:
            self._join()

    def _join(self) -> None:
        from mindspore import communication, get_context, ops

        name = "ranks." + ".".join(map(str, self.ranks))
        if len(name) > GROUP_NAME_LIMIT:
            name = "ranks." + hashlib.sha256(name.encode()).hexdigest()
        try:
            communication.create_group(name, list(self.ranks))
        except RuntimeError as error:
            raise CommunicationError(f"ranks {self.ranks} did not come together: {_brief(error)}") from error
        self.name, self.all_reduce = name, ops.AllReduce(group=name)
        self._sum = lambda values: _run(self.all_reduce, values)
        if get_context("device_target") != "CPU":
            all_gather = ops.AllGather(group=name)
            self._gather = lambda values: _run(all_gather, values[None])

    def _placed(self, values: Floats) -> Floats:
        """Gather by a sum with zeros: exact, at twice the traffic. The CPU gathers in the whole gang only."""
        rows = self._rows.get(values.size)
        if rows is None:  # kept, since the first touch of fresh memory costs more than the sum of two ranks
            rows = self._rows[values.size] = np.zeros((self.size, values.size), np.float32)
        rows[self.place] = values
        return self._sum(rows.reshape(-1)).reshape(rows.shape)

    @property
    def gathers(self) -> bool:
        """Whether `gather` is a real gather, not a sum at twice the traffic."""
        return self._gather != self._placed

    def sum(self, values: Floats) -> Floats:
        """Sum over the group, the same bits on each of its ranks."""
        return values if self.size == 1 else self._sum(values)

    def mean(self, values: Floats) -> Floats:
        """Mean over the group, the same bits on each of its ranks."""
        return values if self.size == 1 else self.sum(values) / np.float32(self.size)

    def gather(self, values: Floats) -> Floats:
        """Every rank's values, in the order of the ranks: shape (n,) -> (size, n)."""
        return values[None] if self.size == 1 else self._gather(values)


def as_bytes(counts: Sequence[int]) -> Floats:
    """Integers from 0 to below 2^63 as the float32 that collectives take: the bytes of each, the lowest first."""
    return np.array(counts, "<i8").view(np.uint8).astype(np.float32)


def from_bytes(values: Floats) -> list[int]:
    """The integers of such bytes, or of the sums of theirs over up to 65793 ranks, which are exact too."""
    bits = range(0, 64, 8)
    return [sum(int(byte) << bit for byte, bit in zip(row, bits, strict=True)) for row in values.reshape(-1, 8)]


def _run(operator: Callable[[Any], Any], values: Floats) -> Floats:
    from mindspore import Tensor

    try:
        result: Floats = operator(Tensor.from_numpy(np.ascontiguousarray(values))).asnumpy()
    except RuntimeError as error:
        raise lost(error) from error
    return result


def lost(error: RuntimeError) -> CommunicationError:
    """The failure that a collective's error stands for: almost always another rank has died."""
    return CommunicationError(f"a collective failed, another rank has probably died: {_brief(error)}")


def of_collective(error: RuntimeError) -> bool:
    """Whether a graph that computes and communicates failed at communicating, by the operator or library it names."""
    return any(word in str(error).lower() for word in ("allreduce", "hccl", "nccl"))


def _brief(error: RuntimeError) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and line[0] != "-"), "no message")  # some begin with a title in rules
