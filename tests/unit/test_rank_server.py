"""HTTP server of a rank: readiness probe and /progress."""

import http.client
import json
import socket

import pytest

from resnetboost_trainer.metrics import progress
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.server import Server


@pytest.fixture
def board() -> ProgressState:
    return ProgressState(Progress(state="Starting", stage="base", attempt=0))


@pytest.fixture
def port(board: ProgressState) -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    Server("127.0.0.1", number, board)
    return number


def answer(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        found = connection.getresponse()
        return found.status, found.read()
    finally:
        connection.close()


def test_the_readiness_probe_reports_whether_steps_are_made(
    board: ProgressState, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(port, "/training")[0] == 503, "none yet, however long it compiles"
    board.beat()
    assert answer(port, "/training")[0] == 200
    monkeypatch.setattr(progress, "FRESH_SECONDS", 0.0)
    assert answer(port, "/training")[0] == 503
    board.update(state="Evaluating")
    assert answer(port, "/training")[0] == 503, "words are no steps"


def test_progress_reports_the_ranks_step(board: ProgressState, port: int) -> None:
    board.update(step=7)
    code, body = answer(port, "/progress?now")
    assert (code, json.loads(body)) == (200, {"state": "Starting", "stage": "base", "attempt": 0, "step": 7})
    assert [answer(port, path)[0] for path in ("/metrics", "/healthz", "/", "/training/x")] == [200, 200, 404, 404]
