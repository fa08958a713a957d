"""Becomes the one operator that plans and writes, by a Lease, and stays it or says that it no longer is.

Not `kubernetes.aio.leaderelection`: it asks twice for each renewal, knows no release, ends at the first connection
error, and a request that hangs (for up to five minutes) outlives the lease that it should renew.
"""

import asyncio
import logging
import random
import time
from collections import deque
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from resnetboost_operator.controller import lease as leases
from resnetboost_operator.controller.lease import Lease, Sighting
from resnetboost_operator.kubeclient.client import Client, Patience
from resnetboost_operator.kubeclient.errors import AlreadyExists, ApiError, Conflict, NotFound, Refused
from resnetboost_operator.kubeclient.resources import HOLDERS, LEASES, Verb

logger = logging.getLogger(__name__)

# Kubernetes' own components use the same; each is longer than the next by more than a bad network takes.
DURATION_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
RENEW_SECONDS = 4.0
RETRY_SECONDS = 2.0
PAUSE_SECONDS = 1.0  # between tries of one renewal
_PATIENCE = Patience(tries=1, timeout_seconds=3.0)

_decode = msgspec.json.Decoder(dict[str, Any])


class LeaseLost(Exception):
    """Somebody else may lead: this process must stop at once."""


class Leader:
    """One candidate, in that `pod` of the lease's namespace, or in none.

    `holder`: who leads as far as it knows. `trouble`: why it could not lead; '' if it could.
    """

    def __init__(self, client: Client, namespace: str, name: str, identity: str, pod: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._pod = pod
        self._sighting = Sighting()
        self._lease: Lease | None = None
        self._renewed_at = float("-inf")
        self._tried: deque[str] = deque(maxlen=16)  # renew times that we wrote, or tried to
        self.holder = ""
        self.trouble = "not asked for yet"

    def is_leading(self) -> bool:
        """Whether the lease was renewed not too long ago; also right after this process was stopped for a while."""
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
                if isinstance(error, Refused):  # what is merely late says nothing of this candidate
                    self.trouble = error.words
                if str(error) != trouble:
                    logger.warning("cannot ask for the lease; trying again: %s", error)
                trouble = str(error)
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.8, 1.2))

    async def keep(self) -> NoReturn:
        """Renew for ever. Raises `LeaseLost`."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew()

    async def release(self) -> None:
        """Let a successor start at once."""
        if not self.is_leading() or self._lease is None:
            return
        given_up = replace(self._lease, holder="", pod="", duration_seconds=1.0)
        self._lease = None
        try:
            await self._write(given_up)
            logger.info("gave up the lease")
        except ApiError as error:
            logger.warning("the lease was not given up and runs out by itself: %s", error)

    async def _try_to_acquire(self) -> bool:
        now = time.monotonic()
        found = await self._read()
        if found is None:
            return await self._take(Lease(self._identity, DURATION_SECONDS, pod=self._pod), now)
        renewed = self._sighting.is_news(found)
        free = self._sighting.is_free(found, self._identity, now) or (not renewed and await self._is_gone(found.pod))
        if found.holder != self.holder and not free:
            logger.info("waiting: %s leads", found.holder)
        self.holder = found.holder
        if not free:
            return False
        transitions = found.transitions + (found.holder != self._identity)
        wanted = replace(
            found, holder=self._identity, duration_seconds=DURATION_SECONDS, transitions=transitions, pod=self._pod
        )
        return await self._take(wanted, now)

    async def _is_gone(self, pod: str) -> bool:
        """Whether the holder ran in that pod, which is no more: its lease need not run out."""
        if not pod:
            return False
        try:
            answer = await self._client.request("get", HOLDERS, self._namespace, pod, patience=_PATIENCE)
        except NotFound:
            return True
        except ApiError:
            return False
        return (_decode.decode(answer).get("status") or {}).get("phase") in ("Succeeded", "Failed")

    async def _take(self, wanted: Lease, now: float) -> bool:
        try:
            self._lease = await self._write(replace(wanted, acquire_time=leases.timestamp(time.time())))
        except (Conflict, AlreadyExists, NotFound):
            return False  # somebody else was faster
        self._renewed_at, self.holder = now, self._identity
        return True

    async def _renew(self) -> None:
        """Renew before the deadline, whatever the API server does meanwhile."""
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
                raise LeaseLost(f"{found.holder or 'somebody'} took the lease") from None
            kept = {"version": ""} if found is None else _of_others(found)
            self._lease = await self._write(replace(self._lease, **kept))

    def _is_ours(self, found: Lease) -> bool:
        """Whether we wrote it, though the answer got lost; not another process that goes by the same name."""
        return found.holder == self._identity and found.renew_time in self._tried

    async def _read(self) -> Lease | None:
        try:
            answer = await self._client.request("get", LEASES, self._namespace, self._name, patience=_PATIENCE)
        except NotFound:
            return None
        return leases.read(_decode.decode(answer))

    async def _write(self, lease: Lease) -> Lease:
        lease = replace(lease, renew_time=leases.timestamp(time.time()))
        self._tried.append(lease.renew_time)
        body = leases.manifest(self._name, self._namespace, lease)
        name = self._name if lease.version else ""
        verb: Verb = "update" if name else "create"
        answer = await self._client.request(verb, LEASES, self._namespace, name, body=body, patience=_PATIENCE)
        return leases.read(_decode.decode(answer))


def _of_others(found: Lease) -> dict[str, Any]:
    """What a renewal leaves as it is: whoever else writes to the lease, helm say, changes nothing but that."""
    return {"version": found.version, "labels": found.labels, "annotations": found.annotations}
