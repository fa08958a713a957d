"""Sends requests to the API server and retries them."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient

from resnetboost_operator.kubeclient import connection, errors, lines, resources, retry
from resnetboost_operator.kubeclient.errors import ApiError, Conflict, NotLeading, Unauthorized, Unavailable
from resnetboost_operator.kubeclient.resources import Resource, Verb

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
BACKOFF = retry.Backoff(first_seconds=0.25, most_seconds=8.0)
# An object has at most 1.5 MiB in etcd.
LINE_LIMIT_BYTES = 8 * 1024 * 1024
_UNLIMITED = contextlib.nullcontext()
_JSON = {"Content-Type": "application/json"}
_CONTENT: dict[resources.Verb, dict[str, str]] = {
    "patch": {"Content-Type": "application/merge-patch+json"},
    "apply": {"Content-Type": "application/apply-patch+yaml"},  # of which JSON is a part
}


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a request is tried if there is no response or a 429 or 5xx, and the timeout of each try."""

    tries: int
    timeout_seconds: float


DEFAULT_RETRIES = RetryPolicy(tries=6, timeout_seconds=30.0)
# The API server deletes a collection one object after the other, which takes up to a minute.
COLLECTION_RETRIES = RetryPolicy(tries=6, timeout_seconds=70.0)
NO_RETRIES = RetryPolicy(tries=1, timeout_seconds=10.0)


class RequestObserver(Protocol):
    """Called after each request, whatever its outcome."""

    def __call__(self, verb: str, resource: str, code: str) -> None:
        """`code` is the HTTP status, or 'error' if no response arrived."""


def ignore(verb: str, resource: str, code: str) -> None:
    """Observer that does nothing."""


class Client:
    """Client of one API server.

    `may_write` says whether this process leads; every write but a lease's checks it first. `observer` is called after
    each request, for metrics.
    """

    def __init__(self, api: ApiClient, observer: RequestObserver = ignore) -> None:
        self._api = api
        self._observer = observer
        self._session: aiohttp.ClientSession | None = None
        self.may_write: Callable[[], bool] = lambda: False

    @property
    def host(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        await self._api.close()

    async def session(self, trace: aiohttp.TraceConfig) -> aiohttp.ClientSession:
        """A session for another library (kopf), with the same credentials, read again."""
        await connection.log_in(self._api.configuration)
        return await connection.kopf_session(self._api, trace)

    async def request(
        self,
        verb: Verb,
        resource: Resource,
        namespace: str = "",
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        retries: RetryPolicy = DEFAULT_RETRIES,
        slots: contextlib.AbstractAsyncContextManager[None] = _UNLIMITED,
    ) -> bytes:
        """Send a request and return the response's body. Raises an `ApiError` once the retries are used up.

        Each try takes one of the `slots`; waiting between tries takes none.
        """
        path, timeout = resource.path(namespace, name), _timeout(retries)
        return await self._retried(_Request(verb, resource, path, name, query, body, timeout), retries, slots)

    async def api_resources(self, api: str, retries: RetryPolicy = NO_RETRIES) -> bytes:
        """The resources of an API (group/version), as an APIResourceList. Raises `NotFound` if it is not served."""
        return await self.document(f"/apis/{api}", retries)

    async def document(self, path: str, retries: RetryPolicy = NO_RETRIES) -> bytes:
        """A document of the server itself, such as /version or /openapi/v3/...; it belongs to no resource.

        Raises `NotFound` if there is none.
        """
        request = _Request("get", resources.DISCOVERY, path, path, None, None, _timeout(retries))
        return await self._retried(request, retries, _UNLIMITED)

    async def _retried(
        self, request: "_Request", retries: RetryPolicy, slots: contextlib.AbstractAsyncContextManager[None]
    ) -> bytes:
        for tries in itertools.count(1):
            self._check(request)
            try:
                async with slots:
                    return await self._try(request)
            except Unavailable as error:
                if tries >= retries.tries:
                    raise
                logger.debug("%s; try %d of %d", error, tries, retries.tries)
                await self._wait(error, tries)
        raise AssertionError("count() never ends")

    def _check(self, request: "_Request") -> None:
        verb, resource = request.verb, request.resource
        if verb not in resource.verbs:
            raise ValueError(
                f"no right to {verb} on {resource.plural}: add it to the table and to the chart's rbac.yaml"
            )
        if verb in resources.NAMED_VERBS and not request.name:
            raise ValueError(f"{verb} of {resource.plural} without a name: it would concern all of them")
        if verb == "deletecollection" and not (request.query or {}).get("labelSelector", "").strip():
            raise ValueError(f"{request} without a label selector: it would delete every one of them")
        if verb not in resources.READ_VERBS and resource is not resources.LEASES and not self.may_write():
            raise NotLeading(f"{request}: this process does not lead")

    async def _try(self, request: "_Request") -> bytes:
        async with self._exchange(request) as answer:
            content: bytes = await answer.read()
        return content

    async def _wait(self, error: Unavailable, tries: int) -> None:
        if isinstance(error, Unauthorized):
            await connection.log_in(self._api.configuration)
        delay = BACKOFF.delay_seconds(tries)
        await asyncio.sleep(max(delay, error.retry_after_seconds or 0.0))

    async def lines(
        self,
        resource: Resource,
        namespace: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it; `opened` is called once the server has accepted it.

        Raises an `ApiError` without a retry. After a 401 the credentials are read again for the next call.
        """
        request = _Request("watch", resource, resource.path(namespace), "", query, None, timeout)
        self._check(request)
        async with self._logging_in_again(), self._exchange(request) as answer:
            opened()
            async for line in lines.split(answer.content.iter_any(), LINE_LIMIT_BYTES):
                yield line

    @contextlib.asynccontextmanager
    async def _logging_in_again(self) -> AsyncIterator[None]:
        try:
            yield
        except Unauthorized:
            await connection.log_in(self._api.configuration)
            raise

    @contextlib.asynccontextmanager
    async def _exchange(self, request: "_Request") -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response whose body is not read yet; any failure until it is closed becomes an `ApiError`."""
        code = "error"
        try:
            answer = await self._send(request)
            code = str(answer.status)
            try:
                if answer.status >= 300:
                    raise await _error(request, answer)
                yield answer
            finally:
                answer.close()  # a connection whose response was read completely is back in the pool by now
        except (aiohttp.ClientError, TimeoutError, OSError, lines.LineTooLong) as error:
            why = f"{type(error).__name__} {error}".rstrip()
            raise Unavailable(f"{request}: no answer from {self.host}: {why}") from error
        finally:
            self._observer(request.verb, request.resource.plural, code)

    async def _send(self, request: "_Request") -> aiohttp.ClientResponse:
        """Send the request with aiohttp alone: the generated client takes longer than the rest of the operator's work
        for a pod.
        """
        configuration = self._api.configuration
        self._session = self._session or connection.session(self._api)
        body = None if request.body is None else msgspec.json.encode(request.body)
        headers = _CONTENT.get(request.verb, _JSON)
        return await self._session.request(
            resources.METHODS[request.verb],
            configuration.host + request.path,
            params=request.query,
            data=body,
            headers={**headers, **await connection.authorization(self._api)},
            timeout=request.timeout,
            proxy=configuration.proxy,
            proxy_headers=configuration.proxy_headers,
            server_hostname=configuration.tls_server_name,
        )


def _timeout(retries: RetryPolicy) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=retries.timeout_seconds, sock_connect=CONNECT_SECONDS)


async def _error(request: "_Request", answer: aiohttp.ClientResponse) -> ApiError:
    retry_after = retry.retry_after_seconds(answer.headers.get("Retry-After"))
    error = errors.from_answer(str(request), answer.status, await answer.read(), retry_after)
    if request.verb == "create" and isinstance(error, Conflict):
        return Unavailable(str(error))  # concurrent creations update the same quota
    return error


class _Request(msgspec.Struct, frozen=True):
    """One request to the API server."""

    verb: Verb
    resource: Resource
    path: str
    name: str
    query: Mapping[str, str] | None
    body: Mapping[str, Any] | None
    timeout: aiohttp.ClientTimeout

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"
