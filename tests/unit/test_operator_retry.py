"""Back-off delays, classification of server answers, and splitting a stream into lines."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from resnetboost_operator.kubeclient import errors, lines, retry
from resnetboost_operator.kubeclient.retry import Backoff


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (10_000, 10.0)]
)
def test_a_back_off_doubles_up_to_its_limit_with_jitter(failures: int, longest: float) -> None:
    backoff = Backoff(first_seconds=1.0, most_seconds=10.0)
    assert backoff.delay_seconds(failures, lambda: 0.0) == longest / 2
    assert backoff.delay_seconds(failures, lambda: 1.0) == longest
    assert longest / 2 <= backoff.delay_seconds(failures) <= longest


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        pytest.param(None, None, id="nothing"),
        pytest.param("2", 2.0, id="seconds"),
        pytest.param("86400", 60.0, id="longer than anybody should wait"),
        pytest.param("-1", None, id="nonsense"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", None, id="a date"),
    ],
)
def test_retry_after_is_read_in_seconds_and_bounded(told: str | None, seconds: float | None) -> None:
    assert retry.retry_after_seconds(told) == seconds


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Refused),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Refused),
        (429, "TooManyRequests", errors.Unavailable),
        (500, "InternalError", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
        (504, "Timeout", errors.Unavailable),
    ],
)
def test_each_answer_has_one_class(code: int, reason: str, kind: type[errors.ApiError]) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "why it is so", "code": code}).encode()
    error = errors.from_answer("create /api/v1/pods", code, body)
    assert type(error) is kind
    assert str(error) == "create /api/v1/pods: why it is so"


def test_an_answer_without_a_status_is_described_by_its_code() -> None:
    error = errors.from_answer("list /api/v1/pods", 502, b"<html>Bad Gateway</html>")
    assert isinstance(error, errors.Unavailable)
    assert str(error) == "list /api/v1/pods: HTTP 502"


def test_an_error_inside_a_watch_has_the_code_of_its_status() -> None:
    body = json.dumps({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
    assert isinstance(errors.from_watch("watch pods", body.encode()), errors.Gone)
    assert isinstance(errors.from_watch("watch pods", b"{}"), errors.Unavailable)


def split(*chunks: bytes, limit_bytes: int = 100) -> list[bytes]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[bytes]:
        return [line async for line in lines.split(stream(), limit_bytes)]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        pytest.param([b"one\ntwo\n"], [b"one", b"two"], id="two in one chunk"),
        pytest.param([b"o", b"ne\nt", b"w", b"o\n"], [b"one", b"two"], id="cut anywhere"),
        pytest.param([b"one\n", b"tw"], [b"one"], id="an unfinished one is none"),
        pytest.param([b"\n\none\n\n"], [b"one"], id="empty ones are none"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_a_stream_is_cut_into_lines_wherever_its_chunks_end(chunks: list[bytes], found: list[bytes]) -> None:
    assert split(*chunks) == found


@pytest.mark.parametrize("chunks", [[b"x" * 101], [b"x" * 60, b"x" * 60], [b"x" * 60, b"x" * 60 + b"\n"]])
def test_a_line_without_end_does_not_fill_the_memory(chunks: list[bytes]) -> None:
    with pytest.raises(lines.LineTooLong):
        split(*chunks)
