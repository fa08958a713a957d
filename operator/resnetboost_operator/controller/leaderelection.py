"""Leader election by a Lease.

Not `kubernetes.aio.leaderelection`: it sends two requests per renewal, cannot release the lease, ends at the first
connection error, and its requests may hang (up to five minutes) longer than the lease is valid.
"""

import asyncio
import logging
import random
import time
from collections import deque
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.errors import AlreadyExists, ApiError, Conflict, NotFound, Refused
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.kubeclient.resources import HOLDERS, LEASES, Verb

logger = logging.getLogger(__name__)

# As in Kubernetes' own components. Each exceeds the next by more than the delays of a bad network.
DURATION_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
RENEW_SECONDS = 4.0
RETRY_SECONDS = 2.0
PAUSE_SECONDS = 1.0  # between attempts of one renewal
_RETRIES = RetryPolicy(tries=1, timeout_seconds=3.0)

_decode = msgspec.json.Decoder(dict[str, Any])


class LeaseLost(Exception):
    """Another process may lead; this one must stop at once."""


class LeaseObservation:
    """Measures how long a lease has not changed, by this process's clock: the holder's may be wrong."""

    def __init__(self) -> None:
        self._lease: Lease | None = None
        self._since = 0.0

    def is_news(self, lease: Lease) -> bool:
        """True if the lease was renewed since the last call of `is_free`."""
        return self._lease is not None and self._lease != lease

    def is_free(self, lease: Lease, identity: str, now: float) -> bool:
        """True if the lease may be taken: no holder, held by this identity, or not renewed for its whole duration."""
        if self._lease != lease:
            self._lease, self._since = lease, now
        return lease.holder in ("", identity) or now >= self._since + lease.duration_seconds


class LeaderElector:
    """One candidate. `pod` is its pod in the lease's namespace, '' if it does not run in one.

    `holder` is the last known leader; `trouble` the reason why this candidate cannot lead, or ''.
    """

    def __init__(self, client: Client, namespace: str, name: str, identity: str, pod: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._pod = pod
        self._observation = LeaseObservation()
        self._lease: Lease | None = None
        self._renewed_at = float("-inf")
        self._tried: deque[str] = deque(maxlen=16)  # renew times that this process wrote, or tried to write
        self.holder = ""
        self.trouble = "not requested yet"

    def is_leading(self) -> bool:
        """True if the lease was renewed recently enough; False right after this process was paused for longer."""
        return self._lease is not None and time.monotonic() < self._renewed_at + DEADLINE_SECONDS

    async def acquire(self) -> None:
        """Wait until this process leads."""
        trouble = ""
        while True:
            try:
                leads = await self._try_to_acquire()
                self.trouble = ""
                if leads:
                    logger.info("leading as %s", self._identity)
                    return
            except ApiError as error:
                if isinstance(error, Refused):  # a timeout says nothing about this candidate
                    self.trouble = error.words
                if str(error) != trouble:
                    logger.warning("cannot get the lease; trying again: %s", error)
                trouble = str(error)
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.8, 1.2))

    async def renew(self) -> NoReturn:
        """Renew the lease periodically. Raises `LeaseLost`."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew_once()

    async def release(self) -> None:
        """Release the lease, so that a successor starts at once."""
        if not self.is_leading() or self._lease is None:
            return
        released = replace(self._lease, holder="", pod="", duration_seconds=1.0)
        self._lease = None
        try:
            await self._write(released)
            logger.info("released the lease")
        except ApiError as error:
            logger.warning("the lease was not released and expires by itself: %s", error)

    async def _try_to_acquire(self) -> bool:
        now = time.monotonic()
        found = await self._read()
        if found is None:
            return await self._take(Lease(self._identity, DURATION_SECONDS, pod=self._pod), now)
        renewed = self._observation.is_news(found)
        free = self._observation.is_free(found, self._identity, now) or (not renewed and await self._is_gone(found.pod))
        if found.holder != self.holder and not free:
            logger.info("waiting: %s leads", found.holder)
        self.holder = found.holder
        if not free:
            return False
        transitions = found.transitions + (found.holder != self._identity)
        lease = replace(
            found, holder=self._identity, duration_seconds=DURATION_SECONDS, transitions=transitions, pod=self._pod
        )
        return await self._take(lease, now)

    async def _is_gone(self, pod: str) -> bool:
        """True if the holder ran in a pod that has ended: its lease need not expire first."""
        if not pod:
            return False
        try:
            answer = await self._client.request("get", HOLDERS, self._namespace, pod, retries=_RETRIES)
        except NotFound:
            return True
        except ApiError:
            return False
        return (_decode.decode(answer).get("status") or {}).get("phase") in ("Succeeded", "Failed")

    async def _take(self, lease: Lease, now: float) -> bool:
        try:
            self._lease = await self._write(replace(lease, acquire_time=leases.timestamp(time.time())))
        except (Conflict, AlreadyExists, NotFound):
            return False  # another candidate was faster
        self._renewed_at, self.holder = now, self._identity
        return True

    async def _renew_once(self) -> None:
        """Renew before the deadline, with retries."""
        while True:
            began = time.monotonic()
            if began >= self._renewed_at + DEADLINE_SECONDS:
                raise LeaseLost(f"the lease was not renewed for {DEADLINE_SECONDS:g} s")
            try:
                await self._write_again()
            except ApiError as error:
                logger.warning("the lease is not renewed yet; trying again: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._renewed_at = began
                return

    async def _write_again(self) -> None:
        assert self._lease is not None, "only a leader renews"
        try:
            self._lease = await self._write(self._lease)
        except (Conflict, NotFound):
            found = await self._read()
            if found is not None and not self._is_ours(found):
                raise LeaseLost(f"{found.holder or 'another process'} took the lease") from None
            kept = {"version": ""} if found is None else _of_others(found)
            self._lease = await self._write(replace(self._lease, **kept))

    def _is_ours(self, found: Lease) -> bool:
        """True if this process wrote the lease, even if the response got lost, and not another of the same name."""
        return found.holder == self._identity and found.renew_time in self._tried

    async def _read(self) -> Lease | None:
        try:
            answer = await self._client.request("get", LEASES, self._namespace, self._name, retries=_RETRIES)
        except NotFound:
            return None
        return leases.read(_decode.decode(answer))

    async def _write(self, lease: Lease) -> Lease:
        lease = replace(lease, renew_time=leases.timestamp(time.time()))
        self._tried.append(lease.renew_time)
        body = leases.manifest(self._name, self._namespace, lease)
        name = self._name if lease.version else ""
        verb: Verb = "update" if name else "create"
        answer = await self._client.request(verb, LEASES, self._namespace, name, body=body, retries=_RETRIES)
        return leases.read(_decode.decode(answer))


def _of_others(found: Lease) -> dict[str, Any]:
    """Fields that a renewal takes over: others, such as helm, may write labels and annotations to the lease."""
    return {"version": found.version, "labels": found.labels, "annotations": found.annotations}
