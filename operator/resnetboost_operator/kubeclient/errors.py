"""Exceptions for failed requests to the API server, by what the caller can do about them."""

import msgspec


class ApiError(Exception):
    """A failed request; the message names the request and repeats the server's reason."""


class Unavailable(ApiError):
    """No response, or a temporary failure (429, 5xx). `retry_after_seconds` is the server's Retry-After, if any."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unauthorized(Unavailable):
    """The credentials are not accepted (401). They may have expired; a retry reads them again."""


class NotFound(ApiError):
    """The object or its kind does not exist (404)."""


class Conflict(ApiError):
    """The object changed in the meantime, or has another uid (409)."""


class AlreadyExists(ApiError):
    """The name is taken (409)."""


class Gone(ApiError):
    """The requested resourceVersion is too old; list again (410)."""


class Refused(ApiError):
    """The server refuses the request: quota, admission, missing rights or an invalid object (other 4xx).

    `words` is the server's message alone.
    """

    def __init__(self, message: str, words: str) -> None:
        super().__init__(message)
        self.words = words


class Invalid(Refused):
    """The object fails the server's validation; a retry would fail too (422)."""


class NotLeading(ApiError):
    """This process does not lead, so it must not write."""


class _Status(msgspec.Struct):
    """A Kubernetes Status object."""

    message: str = ""
    reason: str = ""
    code: int = 0


_KINDS: dict[int, type[ApiError]] = {404: NotFound, 410: Gone}
# In messages of the API validation. An admission policy may use the same code, but its decision may change.
_INVALID = " is invalid: "
_LATER = frozenset({408, 425, 429})


def from_answer(what: str, code: int, body: bytes, retry_after_seconds: float | None = None) -> ApiError:
    """The exception for an answer with that HTTP code; `what` names the request."""
    status = _status(body)
    words = status.message[:1024] or status.reason or f"HTTP {code}"
    message = f"{what}: {words}"
    if code == 401:
        return Unauthorized(message)
    if code >= 500 or code in _LATER:
        return Unavailable(message, retry_after_seconds)
    if code == 409:
        return AlreadyExists(message) if status.reason == "AlreadyExists" else Conflict(message)
    if code == 422 and _INVALID in words:
        return Invalid(message, words)
    kind = _KINDS.get(code)
    return kind(message) if kind is not None else Refused(message, words)


def from_watch(what: str, body: bytes) -> ApiError:
    """The exception for an event of type ERROR in a watch."""
    return from_answer(what, _status(body).code or 500, body)


def _status(body: bytes) -> _Status:
    try:
        return msgspec.json.decode(body, type=_Status)
    except (msgspec.MsgspecError, ValueError):  # a page of a proxy
        return _Status()
