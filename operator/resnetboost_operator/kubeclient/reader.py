"""What a person may look at in a cluster: jobs, and what happened to them; it writes nothing, its errors are sentences.

It needs `list` on resnetboostjobs, `watch` to follow them, and can do without `list` on events and leases.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_operator import __version__, names
from resnetboost_operator.controller import lease as leases
from resnetboost_operator.controller import options
from resnetboost_operator.controller.lease import Lease
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import connection, errors
from resnetboost_operator.kubeclient.cache import Mirror, View
from resnetboost_operator.kubeclient.client import Client, Patience
from resnetboost_operator.kubeclient.reflector import Watch
from resnetboost_operator.kubeclient.resources import JOBS, Resource

USER_AGENT = f"resnetboost/{__version__}"
# Somebody waits for the answer.
_PATIENCE = Patience(tries=2, timeout_seconds=30.0)
# The operator only creates events; the API server keeps them for an hour.
_EVENTS = Resource("", "v1", "events", frozenset({"list"}))
_MOST_EVENTS = 500
_LEASES = Resource("coordination.k8s.io", "v1", "leases", frozenset({"list"}))
_OF_OPERATORS = f"{names.LABEL_LEASE}={names.LEASE_OF_OPERATOR}"


class Happening(msgspec.Struct, frozen=True, rename="camel"):
    """A Kubernetes Event; `last_timestamp` is missing in those of the newer API."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None


class _Happenings(msgspec.Struct):
    items: list[Happening]


_happenings = msgspec.json.Decoder(_Happenings)


class Reader:
    """One cluster; `namespace` is the one that people mean who name none."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def jobs(self, mirror: Mirror[View], namespace: str, name: str = "") -> Watch:
        """A watch, not begun yet, of the jobs of a namespace (all: ''), or of one job."""
        return Watch(self._client, JOBS, mirror, namespace, fields=f"metadata.name={name}" if name else "")

    async def fill(self, jobs: Watch) -> None:
        """Fill the watch's mirror. Raises `UserError`: what is wrong and what would be right."""
        with _sentences(self._client.host):
            await jobs.fill(_PATIENCE)

    async def names(self, namespace: str) -> list[str]:
        """The names of all jobs of a namespace. Raises `UserError`."""
        found: Mirror[str] = Mirror(_name, _nothing)
        await self.fill(self.jobs(found, namespace))
        return sorted(found)

    async def events(self, namespace: str, uid: str) -> list[Happening] | str:
        """What was told of the object with that uid, oldest first; or why that could not be read."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_MOST_EVENTS)}
        try:
            answer = await self._client.request("list", _EVENTS, namespace, query=query, patience=_PATIENCE)
            found = _happenings.decode(answer).items
        except errors.Refused as error:
            return error.words
        except (errors.ApiError, msgspec.MsgspecError) as error:
            return str(error)
        return sorted(found, key=lambda event: event.last_timestamp or event.event_time or "")

    async def leases(self) -> list[Lease] | None:
        """The leases by which operators lead, in all namespaces; None where they may not be looked at."""
        query = {"labelSelector": _OF_OPERATORS}
        try:
            answer = await self._client.request("list", _LEASES, query=query, patience=_PATIENCE)
            return [leases.read(found) for found in msgspec.json.decode(answer)["items"]]
        except (errors.ApiError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Reader]:
    """A reader of the cluster that the kubeconfig names. Raises `UserError` if there is none."""
    client = Client(await connection.connect(USER_AGENT), Metrics())
    try:
        yield Reader(client, connection.namespace() or options.own_namespace())
    finally:
        await client.close()


@contextlib.contextmanager
def _sentences(host: str) -> Iterator[None]:
    """What a refusal means to a person."""
    try:
        yield
    except errors.Unauthorized:
        raise UserError(
            f"the API server at {host} does not know you: the credentials have expired; log in again"
        ) from None
    except errors.Unavailable as error:
        raise UserError(f"{error}; is this the right cluster, and is it up? (KUBECONFIG says which)") from None
    except errors.NotFound:
        remedy = "helm install resnetboost charts/resnetboost brings it; without the chart kubectl apply -f crds/"
        raise UserError(f"the cluster at {host} does not know the kind {names.KIND}; {remedy}") from None
    except errors.Refused as error:
        raise UserError(f"{error.words}; ask for the verbs list and watch on {JOBS.plural}.{JOBS.group}") from None
    except (errors.ApiError, msgspec.MsgspecError) as error:
        raise UserError(f"what answers at {host} is no API server of Kubernetes: {error}") from None


def _name(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _nothing(before: str | None, after: str | None) -> None:
    """The names are read when all are there."""
