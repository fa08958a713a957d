"""Lookups of what Kueue refers to by name: ResourceFlavors and priority classes, requested when a plan needs them.

They are not watched: they are few and change rarely, and a watch would need the right to list them all.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator.controller.store import Store
from resnetboost_operator.job import Job
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.errors import ApiError, NotFound
from resnetboost_operator.kubeclient.resources import PRIORITIES, RESOURCE_FLAVORS, WORKLOAD_PRIORITIES, Resource
from resnetboost_operator.observed import flavor as flavors
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.scheduling.kueue.admission import flavor_names
from resnetboost_operator.scheduling.kueue.workload import PriorityClass, priority_class

logger = logging.getLogger(__name__)

# How long an object is taken for unchanged, and how soon to look again for one that is missing.
KNOWN_SECONDS = 60.0
MISSING_SECONDS = 5.0
# A pass waits for the response.
_RETRIES = RetryPolicy(tries=2, timeout_seconds=10.0)

_decode = msgspec.json.Decoder(dict[str, Any])


class Found(msgspec.Struct, frozen=True):
    """What is known for one job. `retry_seconds`: when to look again for what is missing; None if nothing is."""

    flavors: Mapping[str, Flavor] = {}
    priority: int | None = None
    retry_seconds: float | None = None


class _Entry(msgspec.Struct, frozen=True):
    """The last answer; `obj` is None if the object does not exist or was never read."""

    obj: dict[str, Any] | None
    until: float


class KueueLookups:
    """Requests objects by name and keeps them for a while."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store
        self._entries: dict[tuple[Resource, str], _Entry] = {}
        self._troubles: dict[tuple[Resource, str], str] = {}

    async def find(self, job: Job, workload: WorkloadView | None) -> Found:
        """The flavors that the Workload was admitted to and the value of the job's priority class, as far as known."""
        if not self._store.capabilities.kueue or not (job.queue or workload):
            return Found()
        wanted = [(RESOURCE_FLAVORS, name) for name in (flavor_names(workload) if workload is not None else ())]
        given = priority_class(job)
        priority = _resource(given) if given is not None else None
        objects = {key: await self._get(*key) for key in (*wanted, *([priority] if priority is not None else ()))}
        return Found(
            flavors={name: flavors.view(obj) for (resource, name) in wanted if (obj := objects[resource, name])},
            priority=_value(objects[priority]) if priority is not None else None,
            retry_seconds=MISSING_SECONDS if None in objects.values() else None,
        )

    async def _get(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """The object, None if there is none. After an error it stays what it was."""
        key = (resource, name)
        known = self._entries.get(key)
        if known is not None and time.monotonic() < known.until:
            return known.obj
        try:
            obj: dict[str, Any] | None = _decode.decode(
                await self._client.request("get", resource, name=name, retries=_RETRIES)
            )
            self._troubles.pop(key, None)
        except NotFound:
            obj = None
        except (ApiError, msgspec.MsgspecError) as error:
            self._complain(key, str(error))
            obj = known.obj if known is not None else None
        seconds = MISSING_SECONDS if obj is None or key in self._troubles else KNOWN_SECONDS
        self._entries[key] = _Entry(obj, time.monotonic() + seconds)
        return obj

    def _complain(self, key: tuple[Resource, str], trouble: str) -> None:
        """Log a problem once, however long it lasts."""
        if self._troubles.get(key) != trouble:
            logger.warning("%s %s cannot be read; trying again: %s", key[0].plural, key[1], trouble)
        self._troubles[key] = trouble


def _resource(found: PriorityClass) -> tuple[Resource, str]:
    return (WORKLOAD_PRIORITIES if found.kind == "WorkloadPriorityClass" else PRIORITIES), found.name


def _value(obj: dict[str, Any] | None) -> int | None:
    """The value of a priority class."""
    return int(obj.get("value", 0)) if obj is not None else None
