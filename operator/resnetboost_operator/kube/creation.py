"""Creates a gang's objects, many at once, and finds out what is in the way where it cannot; it deletes nothing."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from resnetboost_operator import names
from resnetboost_operator.kube.apierrors import AlreadyExists, ApiError, Invalid, NotFound, Refused
from resnetboost_operator.kube.client import Client
from resnetboost_operator.kube.jobs import JobRecord
from resnetboost_operator.kube.resources import BY_KIND, PODS
from resnetboost_operator.kube.store import Store

Manifest = Mapping[str, Any]

# Requests at once, of all jobs together. By default an API server has 245 places for all service accounts: more than
# that only waits there, or is told 429.
IN_FLIGHT = 192
# Each needs a connection with a TLS handshake, which many pods must share: 100 pods run after 1.1 s when created by 16
# requests at once, after 1.6 s by 100.
LEAST_IN_FLIGHT, PODS_PER_CONNECTION = 16, 6

_decode = msgspec.json.Decoder(dict[str, Any])


class Outcome(msgspec.Struct):
    """What came of it: how many objects were `created`, or were there already.

    Both in words for people: `refusal`, why the API server does not take an object; `blocked`, what is in the way but
    passes by itself (an older object of that name that is going). `invalid`: it never will take it.
    """

    created: int = 0
    refusal: str = ""
    invalid: bool = False
    blocked: str = ""

    @property
    def obstacle(self) -> str:
        """Why not everything is there; '' if nothing was in the way."""
        return self.refusal or self.blocked


class Creation:
    """Creates objects; `Store` learns of the pods at once."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def create(self, job: JobRecord, manifests: Sequence[Manifest], wanted: Callable[[], bool]) -> Outcome:
        """Create what pods refer to one by one, then the pods in parallel.

        Ends early at the first obstacle, for a gang is of no use before it is whole and no pod may find the config map
        of an earlier job; or as soon as they are no longer `wanted`. Raises `Unavailable` and the like.
        """
        outcome = Outcome()
        pods = [found for found in manifests if found["kind"] == "Pod"]
        for manifest in manifests:
            if manifest["kind"] != "Pod" and wanted() and not outcome.obstacle:
                await self._create(job, manifest, outcome)
        await self._in_parallel(job, iter(pods), _width(len(pods)), wanted, outcome)
        return outcome

    async def _in_parallel(
        self, job: JobRecord, pods: Iterator[Manifest], width: int, wanted: Callable[[], bool], outcome: Outcome
    ) -> None:
        errors: list[ApiError] = []

        async def work() -> None:
            for pod in pods:  # all workers take from the same iterator
                if errors or outcome.obstacle or not wanted():
                    return
                try:
                    await self._create(job, pod, outcome)
                except ApiError as error:
                    errors.append(error)

        await asyncio.gather(*(work() for _ in range(width)))
        if errors:
            raise errors[0]

    async def _create(self, job: JobRecord, manifest: Manifest, outcome: Outcome) -> None:
        resource = BY_KIND[manifest["kind"]]
        try:
            answer = await self._client.request("create", resource, job.namespace, body=manifest, slots=self._slots)
        except AlreadyExists:
            await self._look(job, manifest, outcome)
        except Refused as error:
            outcome.refusal, outcome.invalid = error.words, isinstance(error, Invalid)
        else:
            outcome.created += 1
            if resource is PODS:
                self._store.pod_answered(_decode.decode(answer))

    async def _look(self, job: JobRecord, manifest: Manifest, outcome: Outcome) -> None:
        """The name is taken: by ourselves before a crash, by something older that is going, or by a stranger."""
        resource, name = BY_KIND[manifest["kind"]], manifest["metadata"]["name"]
        thing = f"{manifest['kind']} {name}"
        try:
            found = _decode.decode(await self._client.request("get", resource, job.namespace, name))
        except NotFound:
            outcome.blocked = f"{thing} was still going"
            return
        if not _is_ours(found, job):
            outcome.refusal = f"{thing} exists and is not this job's: delete it, or rename the job"
        elif _controller(found).get("uid") != job.uid:
            outcome.blocked = f"{thing} of an earlier job of this name is still going"
        elif not _is_current(found, manifest):
            outcome.blocked = f"{thing} is still going"
        else:
            outcome.created += 1
            if resource is PODS:
                self._store.pod_answered(found)


def _width(pods: int) -> int:
    """How many requests for that many pods to have in flight."""
    return min(pods, IN_FLIGHT, max(LEAST_IN_FLIGHT, pods // PODS_PER_CONNECTION))


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
