"""Access to object storage: what a refusal means, and where requests go; against scripted answers of S3."""

import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from resnetboost_trainer.failures import ConfigError, StorageError
from resnetboost_trainer.storage import address, bucket
from resnetboost_trainer.storage.bucket import Bucket, Outage

ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>words</Message></Error>'


class Refusing(http.server.BaseHTTPRequestHandler):
    """Refuses every request with one of S3's documented errors."""

    status, code = 400, "ExpiredToken"

    def _refuse(self) -> None:
        body = ERROR.format(code=self.code).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._refuse()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._refuse()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Refusing]]:
    handler = type("Handler", (Refusing,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield handler
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, "ExpiredToken", "the credentials have expired; renew them"),
        (403, "AccessDenied", "the credentials do not allow it; give them the right to list, read, write and delete"),
        (403, "InvalidAccessKeyId", "the storage does not know this access key; set AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", "this machine's clock differs from the storage's; correct the clock"),
        (404, "NoSuchBucket", "there is no such bucket; create it"),
        (400, "KeyTooLongError", "the storage refuses the request: KeyTooLongError; correct what it names"),
        (500, "InternalError", "the storage does not answer; check AWS_ENDPOINT_URL"),
    ],
)
def test_a_refusal_is_one_sentence(status: int, code: str, message: str, refusing: type[Refusing]) -> None:
    refusing.status, refusing.code = status, code
    place = Bucket(address.parse("s3://bucket/runs", "url"), 0.2)
    for act in (lambda: place.put("key", b"x"), lambda: place.read("key", 10), lambda: list(place.objects())):
        with pytest.raises(StorageError) as raised:
            act()
        assert message in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(StorageError if status == 500 else ConfigError):
        place.check()


def test_without_any_credentials_they_are_what_is_missing(
    refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then asks the node for some, and a proxy may answer."""
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    for variable in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    refusing.status, refusing.code = 403, "AccessDenied"
    with pytest.raises(ConfigError, match=r"^s3://bucket/runs: no credentials were found; set AWS_ACCESS_KEY_ID and"):
        Bucket(address.parse("s3://bucket/runs", "url"), 0.2).check()


def test_the_bucket_is_in_the_path_or_in_the_host() -> None:
    at = {"AWS_ENDPOINT_URL": "https://obs.example.com/"}
    assert bucket.endpoint_of("data", at)["endpoint"] == "https://obs.example.com"
    assert bucket.endpoint_of("data", at)["region"] == "us-east-1"
    in_host = at | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_REGION": "north-4"}
    assert bucket.endpoint_of("data", in_host)["endpoint"] == "https://data.obs.example.com"
    assert bucket.endpoint_of("data", in_host)["region"] == "north-4"
    assert bucket.endpoint_of("data", {}) == {"region": "us-east-1"}


@pytest.mark.parametrize(
    ("text", "key"),
    [("s3://bucket", ""), ("s3://bucket/", ""), ("s3://bucket/a/b/", "a/b"), ("s3://my.data/a b", "a b")],
)
def test_addresses_are_read(text: str, key: str) -> None:
    assert address.parse(text, "url").key == key
    assert str(address.parse(text, "url")) == text.rstrip("/")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield url


def test_a_storage_that_never_answers_is_told_of_and_given_up(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket, "_FIRST_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(bucket, "_SILENT_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(Outage, match=r"^s3://bucket/run: the storage does not answer; check AWS_ENDPOINT_URL"):
        Bucket(address.parse("s3://bucket/run", "SOURCE"), 1).check()
    assert time.monotonic() - began < 5
    assert caplog.messages == [
        f"waiting for an answer of s3://bucket/run at {silent}; gives up about 1 s after it began"
    ]


def test_a_storage_that_answers_is_not_told_of(refusing: type[Refusing], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError):
        Bucket(address.parse("s3://bucket/run", "SOURCE"), 1).check()
    assert caplog.messages == []
