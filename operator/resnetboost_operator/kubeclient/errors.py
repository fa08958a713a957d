"""What an API server's refusals mean to the operator, as exceptions; what follows from them is for others to say."""

import msgspec


class ApiError(Exception):
    """A request failed; the message says which one and why, in the server's words."""


class Unavailable(ApiError):
    """No answer, or one that says: later (429, 5xx). `retry_after_seconds`: how much later, if it was said."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unauthorized(Unavailable):
    """The credentials are not taken (401): they have expired, and the next ones may do."""


class NotFound(ApiError):
    """There is no such object, or no such kind (404)."""


class Conflict(ApiError):
    """The object is not the one that was meant: it has changed meanwhile, or has another uid (409)."""


class AlreadyExists(ApiError):
    """The name is taken (409)."""


class Gone(ApiError):
    """The server no longer remembers that version: list again (410)."""


class Refused(ApiError):
    """The server does not want it: quota, admission, missing rights, an invalid object (other 4xx).

    `words` are the server's alone.
    """

    def __init__(self, message: str, words: str) -> None:
        super().__init__(message)
        self.words = words


class Invalid(Refused):
    """The server's validation says that the object can never be: asking again would not help (422)."""


class NotLeading(ApiError):
    """Another operator may be at work: nothing is written any more."""


class _Status(msgspec.Struct):
    """Kubernetes' own account of a failure."""

    message: str = ""
    reason: str = ""
    code: int = 0


_KINDS: dict[int, type[ApiError]] = {404: NotFound, 410: Gone}
# In the words of validation; a policy that denies with the same code may be changed.
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
    except (msgspec.MsgspecError, ValueError):  # a proxy's page
        return _Status()
