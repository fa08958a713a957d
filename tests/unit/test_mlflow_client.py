"""The client of MLflow's REST API: credentials, redirects, and which refusals are final."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api.tracking import MLflow as Settings
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.tracking import Rejected
from resnetboost_trainer.tracking.mlflow import MLflow
from resnetboost_trainer.tracking.mlflow_client import Client, MLflowError, NotFound


class Server(http.server.ThreadingHTTPServer):
    """Gives every request the same answer, and keeps the headers of each."""

    answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.headers: list[Any] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.headers.append(self.headers)
        code, headers, body = self.server.answer
        self.send_response(code)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


CREDENTIALS = {
    "a token": ({"MLFLOW_TRACKING_TOKEN": "abc\n"}, "Bearer abc"),
    "user and password": ({"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "you"}, "Basic bWU6eW91"),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("variables", "header"), CREDENTIALS.values(), ids=CREDENTIALS.keys())
def test_credentials_come_from_the_usual_variables(
    variables: dict[str, str], header: str | None, server: Server
) -> None:
    Client(server.address, variables).get("x")
    assert server.headers[0]["Authorization"] == header


def test_a_token_does_not_follow_a_redirect(server: Server) -> None:
    with Server() as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        server.answer = (302, {"Location": other.address}, b"")
        with pytest.raises(MLflowError, match=r"302 Found; give the address it redirects to"):
            Client(server.address, {"MLFLOW_TRACKING_TOKEN": "abc"}).get("x")
        other.shutdown()
    assert not other.headers


REFUSALS: dict[str, tuple[int, bytes, type[Exception], str]] = {
    "of MLflow": (400, b'{"error_code": "INVALID", "message": "bad value"}', Rejected, "400 Bad Request: bad value"),
    "for what is missing": (404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST"}', NotFound, "404 Not Found"),
    "of a proxy that has lost its server": (404, b"<html>", MLflowError, "404 Not Found"),
    "of a proxy, as a list": (400, b"[[1, 2, 3]]", MLflowError, "400 Bad Request"),
    "of a proxy with a limit": (413, b"<html>", Rejected, "413"),
    "of an overloaded server": (503, b"", MLflowError, "503"),
    "without a token": (401, b"", MLflowError, "401 Unauthorized; correct MLFLOW_TRACKING_TOKEN"),
}


@pytest.mark.parametrize(("code", "body", "kind", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_final_if_another_try_would_end_in_it_too(
    code: int, body: bytes, kind: type[Exception], text: str, server: Server
) -> None:
    server.answer = (code, {}, body)
    with pytest.raises(kind, match=text) as raised:
        Client(server.address, {}).get("x")
    assert type(raised.value) is kind


def test_a_server_out_of_reach_may_come_back() -> None:
    with Server() as gone:
        pass
    with pytest.raises(MLflowError, match=r"is out of reach: .*refused"):
        Client(gone.address, {}).post("x")


def test_an_answer_that_is_not_json_is_an_error(server: Server) -> None:
    server.answer = (200, {}, b"<html>Log in</html>")
    with pytest.raises(MLflowError, match="something else than JSON"):
        Client(server.address, {}).get("x")


@pytest.mark.parametrize("artifacts", ["s3://bucket/1/artifacts", "/srv/mlruns/1/artifacts"])
def test_artifacts_that_the_server_does_not_take_are_refused_with_a_remedy(artifacts: str, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="start it with --serve-artifacts"):
        Client("http://127.0.0.1:1", {}).upload(artifacts, "card.md", tmp_path / "card.md")


MISTAKES = {
    "no address": ({}, "tracking.mlflow.trackingUri: is missing; give it, or set MLFLOW_TRACKING_URI"),
    "a folder": ({"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}, "MLFLOW_TRACKING_URI: it must be an address of http"),
    "a password": ({"MLFLOW_TRACKING_URI": "http://me:secret@mlflow"}, "MLFLOW_TRACKING_URI: it must be an address"),
    "no certificates": (
        {"MLFLOW_TRACKING_URI": "https://mlflow", "MLFLOW_TRACKING_SERVER_CERT_PATH": "/missing"},
        "MLFLOW_TRACKING_SERVER_CERT_PATH: it cannot be read: No such file",
    ),
}


@pytest.mark.parametrize(("variables", "text"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_environment_is_named_without_its_value(variables: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        MLflow(Settings(), variables)
    assert "secret" not in str(raised.value)
