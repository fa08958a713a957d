"""Creates one object of a gang, or finds out why it cannot be created."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient import resources
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import AlreadyExists, Invalid, NotFound, Refused
from resnetboost_operator.observed import podfields

Manifest = Mapping[str, Any]

_decode = msgspec.json.Decoder(dict[str, Any])


class Obstacle(msgspec.Struct, frozen=True):
    """Why an object could not be created, with `words` for messages.

    `passing`: the cause disappears soon by itself (an older object of that name is being deleted). `invalid`: the
    object fails the API server's validation.
    """

    words: str
    passing: bool = False
    invalid: bool = False


class Creation:
    """Creates objects and applies created pods and PodGroups to the store."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store

    async def create(
        self, job: JobRecord, manifest: Manifest, slots: contextlib.AbstractAsyncContextManager[None]
    ) -> Obstacle | None:
        """Create an object; returns None once it exists, even from before a crash. Raises an `ApiError`."""
        resource = resources.of(manifest)
        try:
            answer = await self._client.request("create", resource, job.namespace, body=manifest, slots=slots)
        except AlreadyExists:
            if manifest["kind"] == "Secret":  # it may not be read, and its name has the job's uid and the key's id
                return None
            return await self._inspect_existing(job, manifest)
        except Refused as error:
            return Obstacle(error.words, invalid=isinstance(error, Invalid))
        self._apply(manifest, answer)
        return None

    async def _inspect_existing(self, job: JobRecord, manifest: Manifest) -> Obstacle | None:
        """Find out who took the name: this job before a crash, an older object in deletion, or a foreign object."""
        resource, name = resources.of(manifest), manifest["metadata"]["name"]
        thing = f"{manifest['kind']} {name}"
        try:
            answer = await self._client.request("get", resource, job.namespace, name)
        except NotFound:
            return Obstacle(f"{thing} was still being deleted", passing=True)
        found = _decode.decode(answer)
        if not _is_ours(found, job):
            return Obstacle(f"{thing} exists and is not this job's: delete it, or rename the job")
        if _controller(found).get("uid") != job.uid:
            return Obstacle(f"{thing} of an earlier job of this name is still being deleted", passing=True)
        if not _is_current(found, manifest):
            return Obstacle(f"{thing} is still being deleted", passing=True)
        self._apply(manifest, answer)
        return None

    def _apply(self, manifest: Manifest, answer: bytes) -> None:
        """Apply the response if the store keeps objects of that kind."""
        if manifest["kind"] == "Pod":
            self._store.apply_pod_response(podfields.decode(answer))
        elif manifest["kind"] == "PodGroup":
            self._store.apply_pod_group_response(_decode.decode(answer))


def _controller(found: Manifest) -> Manifest:
    """The controlling owner reference; empty if there is none."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _is_ours(found: Manifest, job: JobRecord) -> bool:
    """True if this job or an earlier one of the same name controls the object."""
    owner = _controller(found)
    return (owner.get("kind"), owner.get("name")) == (names.KIND, job.name)


def _is_current(found: Manifest, wanted: Manifest) -> bool:
    """True if the existing object belongs to the same attempt and is not being deleted."""
    labels = found["metadata"].get("labels") or {}
    same_attempt = labels.get(names.LABEL_ATTEMPT) == wanted["metadata"]["labels"][names.LABEL_ATTEMPT]
    return same_attempt and "deletionTimestamp" not in found["metadata"]
