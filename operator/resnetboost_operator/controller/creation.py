"""Creates one object of a gang, and finds out what is in the way where it cannot; it deletes nothing."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator import names
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import AlreadyExists, Invalid, NotFound, Refused
from resnetboost_operator.kubeclient.resources import BY_KIND, PODS

Manifest = Mapping[str, Any]

_decode = msgspec.json.Decoder(dict[str, Any])


class Obstacle(msgspec.Struct, frozen=True):
    """Why an object is not there, in `words` for people.

    `passing`: what is in the way goes by itself soon (an older object of that name that is going). `invalid`: the API
    server will never take it.
    """

    words: str
    passing: bool = False
    invalid: bool = False


class Creation:
    """Creates objects; `Store` learns of the pods at once."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store

    async def create(
        self, job: JobRecord, manifest: Manifest, slots: contextlib.AbstractAsyncContextManager[None]
    ) -> Obstacle | None:
        """None once it is there, perhaps from before a crash. Raises `Unavailable` and the like."""
        resource = BY_KIND[manifest["kind"]]
        try:
            answer = await self._client.request("create", resource, job.namespace, body=manifest, slots=slots)
        except AlreadyExists:
            return await self._look(job, manifest)
        except Refused as error:
            return Obstacle(error.words, invalid=isinstance(error, Invalid))
        if resource is PODS:
            self._store.pod_answered(_decode.decode(answer))
        return None

    async def _look(self, job: JobRecord, manifest: Manifest) -> Obstacle | None:
        """The name is taken: by ourselves before a crash, by something older that is going, or by a stranger."""
        resource, name = BY_KIND[manifest["kind"]], manifest["metadata"]["name"]
        thing = f"{manifest['kind']} {name}"
        try:
            found = _decode.decode(await self._client.request("get", resource, job.namespace, name))
        except NotFound:
            return Obstacle(f"{thing} was still going", passing=True)
        if not _is_ours(found, job):
            return Obstacle(f"{thing} exists and is not this job's: delete it, or rename the job")
        if _controller(found).get("uid") != job.uid:
            return Obstacle(f"{thing} of an earlier job of this name is still going", passing=True)
        if not _is_current(found, manifest):
            return Obstacle(f"{thing} is still going", passing=True)
        if resource is PODS:
            self._store.pod_answered(found)
        return None


def _controller(found: Manifest) -> Manifest:
    """The owner that controls the object; empty if nobody does."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _is_ours(found: Manifest, job: JobRecord) -> bool:
    """Whether the job, or an earlier one of its name, controls the object."""
    owner = _controller(found)
    return (owner.get("kind"), owner.get("name")) == (names.KIND, job.name)


def _is_current(found: Manifest, wanted: Manifest) -> bool:
    """Whether the job's object is the very one that was to be created: of the same attempt, not on its way out."""
    labels = found["metadata"].get("labels") or {}
    same_attempt = labels.get(names.LABEL_ATTEMPT) == wanted["metadata"]["labels"][names.LABEL_ATTEMPT]
    return same_attempt and "deletionTimestamp" not in found["metadata"]
