"""A bucket of object storage: list, read, write and delete, with retries; every failure is one sentence.

Endpoint, region, path style and credentials come from the usual variables (AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID and so on), never from a job.
"""

import contextlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import urlsplit

from resnetboost_api import failures
from resnetboost_trainer.failures import ConfigError, StorageError, TrainingError
from resnetboost_trainer.storage.address import Address

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

T = TypeVar("T")

log = logging.getLogger(__name__)

# Seconds that a request is repeated for while the storage does not answer, by default.
RETRY_SECONDS = 300
_MOST_RETRIES = 1000  # the seconds decide
_FIRST_WAIT, _LONGEST_WAIT = timedelta(milliseconds=200), timedelta(seconds=10)
_CONNECT_SECONDS, _REQUEST_SECONDS = 10, 60
# The first request lists one name: it need not wait for an answer as long as others, and says early that it waits.
_FIRST_REQUEST_SECONDS, _SILENT_SECONDS = 10, 3
# Larger objects are written in parts of this size and read in ranges of it.
PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_DELETED_AT_ONCE = 500
_LISTED_AT_ONCE = 1000
# Where credentials can come from without a key: roles of service accounts and of containers, and nodes of AWS.
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Where the library asks for credentials that no variable has: nodes and containers of AWS.
_METADATA_SERVICE = re.compile(r"http://169\.254\.|/latest/(api/token|meta-data)\b")
_STATUS = re.compile(r"status code: (\d{3})\b")

_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or correct the Secret of storage.secretName"
# What S3's error codes mean: the problem and the remedy.
_MEANINGS = {
    "NoSuchBucket": ("there is no such bucket", "create it, or correct the bucket's name or AWS_ENDPOINT_URL"),
    "InvalidAccessKeyId": ("the storage does not know this access key", _KEYS),
    "XAdminUserNotFound": ("the storage does not know this access key", _KEYS),
    "InvalidToken": ("the storage does not know these credentials", _KEYS),
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key", _KEYS),
    "ExpiredToken": (
        "the credentials have expired",
        "renew them, and the Secret of storage.secretName if they are there",
    ),
    "RequestTimeTooSkewed": ("this machine's clock differs from the storage's", "correct the clock"),
    "AccessDenied": ("the credentials do not allow it", "give them the right to list, read, write and delete there"),
    "PermanentRedirect": ("the bucket is in another region", "set AWS_REGION to the bucket's"),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "set AWS_REGION to the bucket's"),
}
_AWAY = "the storage does not answer", "check AWS_ENDPOINT_URL and the network, or wait until it is back"


class Object(NamedTuple):
    """An object of a listing: its key below the address that was listed, its size and what changes with its content."""

    key: str
    bytes: int
    tag: str

    @property
    def content(self) -> str:
        """The ETag, if there is one: unlike the time of writing, listings and answers have it in the same form."""
        return self.tag.partition(" ")[0]


class Missing(StorageError, failure=failures.STORAGE_ERROR):
    """There is no such object."""


class TooLarge(StorageError, failure=failures.STORAGE_ERROR):
    """An object is larger than it may be."""


class Changed(StorageError, failure=failures.STORAGE_ERROR):
    """An object has another content than when it was looked up."""


class Outage(StorageError, failure=failures.STORAGE_ERROR):
    """The storage did not answer for as long as a request is repeated."""


class Bucket:
    """The objects below an address. Every method raises StorageError in one sentence; safe to use from threads."""

    def __init__(self, address: Address, retry_seconds: float = RETRY_SECONDS) -> None:
        """Make no request yet. Raises ConfigError for settings that cannot work."""
        self.address, self._retry_seconds = address, retry_seconds
        self._store = _connect(address, retry_seconds)
        self.endpoint = _endpoint(os.environ)

    def check(self) -> None:
        """Raise ConfigError if bucket or credentials are wrong, so that training does not begin with them."""
        import obstore

        store = _connect(self.address, self._retry_seconds, _FIRST_REQUEST_SECONDS)
        with self._failing("", ConfigError), self._telling():
            next(iter(obstore.list(store, self._key("") + "/", chunk_size=1)), None)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Say what is waited for, if it takes more than a moment."""
        place = f"{self.address} at {self.endpoint}" if self.endpoint else str(self.address)
        limit = f"gives up about {self._retry_seconds:.0f} s after it began"
        timer = threading.Timer(_SILENT_SECONDS, log.warning, (f"waiting for an answer of {place}; {limit}",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def objects(self, prefix: str = "") -> Iterator[Object]:
        """List all objects below a prefix, which ends at a slash; not those whose keys would lead out of a folder."""
        import obstore

        start = self._key(prefix)
        above = len(self.address.key) + 1 if self.address.key else 0
        with self._failing(prefix):
            for found in obstore.list(self._store, f"{start}/" if start else None, chunk_size=_LISTED_AT_ONCE):
                for item in found:
                    if _is_plain(key := item["path"][above:]):
                        yield Object(key, item["size"], _tag(item))

    def find(self, name: str) -> Object | None:
        """Look up the object of that name below the address; None if there is none."""
        with contextlib.suppress(Missing):
            return self.look_up(name)
        return None

    def look_up(self, key: str, limit: float = math.inf) -> Object:
        """Look up an object. Raises Missing, TooLarge."""
        import obstore

        with self._failing(key):
            found = obstore.get(self._store, self._key(key)).meta
        self._check_size(key, found["size"], limit)
        return Object(key, found["size"], _tag(found))

    def folders(self, prefix: str = "") -> Sequence[str]:
        """List the names of what has objects below it, one level below a prefix."""
        import obstore

        start = self._key(prefix)
        with self._failing(prefix):
            found = obstore.list_with_delimiter(self._store, f"{start}/" if start else None)
        names = [name.rstrip("/").rpartition("/")[2] for name in found["common_prefixes"]]
        return sorted(name for name in names if _is_plain(name))

    def read(self, key: str, limit: int) -> bytes:
        """Read a small object. Raises Missing, TooLarge."""
        import obstore

        with self._failing(key):
            found = obstore.get(self._store, self._key(key))
            self._check_size(key, found.meta["size"], limit)
            return bytes(found.bytes())

    def read_part(self, found: Object, start: int, end: int) -> bytes:
        """Read a part of an object of a listing. Raises Missing, and Changed if it has changed since then."""
        if start == end:
            return b""
        parts = range(start, end, PART_BYTES)
        return b"".join(self._part(found, first, min(first + PART_BYTES, end)) for first in parts)

    def _part(self, found: Object, start: int, end: int) -> bytes:
        import obstore

        def read() -> tuple[bytes, Object]:
            answer = obstore.get(self._store, self._key(found.key), options={"range": (start, end)})
            return bytes(answer.bytes()), Object(found.key, answer.meta["size"], _tag(answer.meta))

        data, now = self._repeated(found.key, read)
        if now.bytes != found.bytes or now.content != found.content or len(data) != end - start:
            raise Changed(f"{self.address.below(found.key)}: it has changed since it was listed; start again")
        return data

    def download(self, found: Object, to: BinaryIO) -> None:
        """Copy an object into a file, a large one by ranges. Raises Missing, and Changed as `read_part` does."""
        for start in range(0, found.bytes, PART_BYTES):
            to.write(self._part(found, start, min(start + PART_BYTES, found.bytes)))

    def put(self, key: str, content: bytes | BinaryIO) -> None:
        """Write an object; it is there as a whole or not at all. A file is read from its beginning.

        The library does not repeat a write whose answer was lost; here the same content may be written twice.
        """
        import obstore

        def write() -> None:
            if not isinstance(content, bytes):
                content.seek(0)
            obstore.put(self._store, self._key(key), content, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

        self._repeated(key, write)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are gone already."""
        import obstore

        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            with contextlib.suppress(Missing), self._failing(some[0]):
                obstore.delete(self._store, [self._key(key) for key in some])

    def _repeated(self, key: str, request: Callable[[], T]) -> T:
        """Repeat a request where the library does not: after a write, or an answer that broke off."""
        until, wait = time.monotonic() + self._retry_seconds, _FIRST_WAIT
        while True:
            try:
                with self._failing(key):
                    return request()
            except Outage:
                if time.monotonic() + wait.total_seconds() > until:
                    raise
            time.sleep(wait.total_seconds())
            wait = min(2 * wait, _LONGEST_WAIT)

    def _check_size(self, key: str, size: int, limit: float) -> None:
        if size > limit:
            raise TooLarge(f"{self.address.below(key)}: it has {size} bytes, more than {limit}")

    def _key(self, below: str) -> str:
        return self.address.below(below.strip("/")).key

    @contextlib.contextmanager
    def _failing(self, key: str, kind: type[TrainingError] = StorageError) -> Iterator[None]:
        """Turn the library's errors into one sentence."""
        from obstore.exceptions import BaseError, NotFoundError

        try:
            yield
        except (BaseError, OSError) as error:
            text, _, _ = str(error).partition("Debug source:")
            code = _CODE.search(text)
            if isinstance(error, NotFoundError | FileNotFoundError) and (code is None or code[1] == "NoSuchKey"):
                raise Missing(f"{self.address.below(key)}: there is no such object; correct the address") from None
            problem, remedy = _explained(text)
            kind = Outage if (problem, remedy) == _AWAY else kind
            raise kind(f"{self.address.below(key)}: {problem}; {remedy}") from None


def _connect(address: Address, retry_seconds: float, request_seconds: float = _REQUEST_SECONDS) -> "S3Store":
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    endpoint = _endpoint(os.environ)
    client: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "timeout": timedelta(seconds=request_seconds),
    }
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
        raise ConfigError(f"AWS_ENDPOINT_URL: {endpoint!r} is no URL; use one such as https://storage.example.com")
    if endpoint and not os.environ.get("AWS_ACCESS_KEY_ID") and not any(os.environ.get(name) for name in _ROLES):
        raise ConfigError(f"{address}: there are no credentials for {endpoint}; {_KEYS}")
    try:
        return S3Store(
            address.bucket,
            client_options=client,
            retry_config={
                "max_retries": _MOST_RETRIES,
                "retry_timeout": timedelta(seconds=retry_seconds),
                "backoff": {"init_backoff": _FIRST_WAIT, "max_backoff": _LONGEST_WAIT, "base": 2},
            },
            **endpoint_of(address.bucket, os.environ),
        )
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(f"{address}: {_first_line(str(error))}; correct the variables AWS_...") from None


def _endpoint(variables: Mapping[str, str]) -> str:
    return variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL") or ""


def endpoint_of(bucket: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return region and endpoint; this has the bucket in its host name where that style is asked for."""
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    found: dict[str, Any] = {"region": region or "us-east-1"}
    if not (endpoint := _endpoint(variables)):
        return found
    in_host = variables.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes")
    url = urlsplit(endpoint)
    if in_host and not url.netloc.startswith(f"{bucket}."):
        url = url._replace(netloc=f"{bucket}.{url.netloc}")
    own = url.geturl().rstrip("/")
    return found | {"endpoint": own, "aws_endpoint_url_s3": own}


def _explained(text: str) -> tuple[str, str]:
    """Return what an error of the library means, and its remedy."""
    code, status = _CODE.search(text), _STATUS.search(text)
    if _METADATA_SERVICE.search(text):  # a proxy may refuse the request for credentials
        return "no credentials were found", _KEYS
    if code is not None and code[1] in _MEANINGS:
        return _MEANINGS[code[1]]
    if status is not None and status[1] == "403":
        return _MEANINGS["AccessDenied"]
    if status is not None and status[1].startswith("4"):
        return f"the storage refuses the request: {code[1] if code is not None else status[1]}", "correct what it names"
    return _AWAY


def _is_plain(key: str) -> bool:
    """True for a key that is the path of a file below a folder, also for somebody who chose it with other intents."""
    return "\0" not in key and not any(part in ("", ".", "..") for part in key.split("/"))


def _first_line(text: str) -> str:
    return text.splitlines()[0].strip()[:300] if text.strip() else "unknown error"


def _tag(found: Mapping[str, Any]) -> str:
    """Return what tells one content of an object from another: its ETag and when it was written."""
    return f"{found.get('e_tag') or ''} {found.get('last_modified')}"
