"""Reads jobs, their events and leases for the command line; its errors are sentences for a user.

Needs `list` on resnetboostjobs, and `watch` to follow them. The right to list events and leases is optional.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator import __version__
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import connection, errors, in_cluster
from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.cache import Cache, View
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.kubeclient.reflector import Reflector
from resnetboost_operator.kubeclient.resources import JOBS, Resource

USER_AGENT = f"resnetboost/{__version__}"
# A user waits for the response.
_RETRIES = RetryPolicy(tries=2, timeout_seconds=30.0)
# The operator itself only creates events; the API server keeps them for an hour.
_EVENTS = Resource("", "v1", "events", frozenset({"list"}))
_MOST_EVENTS = 500
_LEASES = Resource("coordination.k8s.io", "v1", "leases", frozenset({"list"}))
_OF_OPERATORS = f"{names.LABEL_LEASE}={names.LEASE_OF_OPERATOR}"


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """A Kubernetes Event; `last_timestamp` is missing in those of the newer API."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None


class _EventList(msgspec.Struct):
    items: list[Event]


_event_list = msgspec.json.Decoder(_EventList)


class Reader:
    """Reads one cluster; `namespace` is the default namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def jobs(self, cache: Cache[View], namespace: str, name: str = "", labels: str = "") -> Reflector:
        """A reflector, not started yet, of the jobs of a namespace ('' for all), those with labels, or one job."""
        fields = f"metadata.name={name}" if name else ""
        return Reflector(self._client, JOBS, cache, namespace, labels=labels, fields=fields)

    async def fill(self, jobs: Reflector) -> None:
        """List once, into the reflector's cache. Raises `UserError`, which names the problem and the remedy."""
        with as_user_errors(self._client.host):
            await jobs.fill(_RETRIES)

    async def names(self, namespace: str) -> list[str]:
        """The names of all jobs of a namespace. Raises `UserError`."""
        found: Cache[str] = Cache(_name, _nothing)
        await self.fill(self.jobs(found, namespace))
        return sorted(found)

    async def events(self, namespace: str, uid: str) -> list[Event] | str:
        """The events of the object with that uid, oldest first; or why they could not be read."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_MOST_EVENTS)}
        try:
            answer = await self._client.request("list", _EVENTS, namespace, query=query, retries=_RETRIES)
            found = _event_list.decode(answer).items
        except errors.Refused as error:
            return error.words
        except (errors.ApiError, msgspec.MsgspecError) as error:
            return str(error)
        return sorted(found, key=lambda event: event.last_timestamp or event.event_time or "")

    async def leases(self) -> list[Lease] | None:
        """The operators' leases in all namespaces; None if they may not be listed."""
        query = {"labelSelector": _OF_OPERATORS}
        try:
            answer = await self._client.request("list", _LEASES, query=query, retries=_RETRIES)
            return [leases.read(found) for found in msgspec.json.decode(answer)["items"]]
        except (errors.ApiError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Reader]:
    """A reader of the cluster that the kubeconfig names. Raises `UserError` if there is none."""
    client = Client(await connection.connect(USER_AGENT))
    try:
        yield Reader(client, default_namespace())
    finally:
        await client.close()


def default_namespace() -> str:
    """The namespace that commands without -n are about. Raises `UserError` if there is no kubeconfig."""
    return connection.namespace() or in_cluster.own_namespace()


@contextlib.contextmanager
def as_user_errors(host: str, verbs: str = "list and watch") -> Iterator[None]:
    """Turn API errors into `UserError`s; `verbs` are those on jobs that the requests need."""
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
        raise UserError(f"{error.words}; ask for the verbs {verbs} on {JOBS.plural}.{JOBS.group}") from None
    except (errors.ApiError, msgspec.MsgspecError) as error:
        raise UserError(f"the server at {host} is not a Kubernetes API server: {error}") from None


def _name(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _nothing(before: str | None, after: str | None) -> None:
    """Ignore changes: the names are read after the list."""
