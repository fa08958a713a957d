"""`resnetboost compare job/NAME`: curves from logs of the trainer's own logger, and sentences about what is missing."""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from resnetboost_api import names
from resnetboost_operator.cli.compare import cluster
from resnetboost_operator.cli.compare.cluster import Cluster, Found, Log
from resnetboost_operator.cli.main import main
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import comparison_picture, log_curves
from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics import logger as loggers
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.logger import MetricLogger
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.record import EvaluationRecord
from support import clusterjobs
from support.scriptedserver import Answer, ScriptedServer, refuses, says
from support.steprecords import record
from support.trainerconfig import GOOD

PER_EPOCH, BATCH = 10, 64


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Write a log as rank 0 does: of steps `first` to `last`, of which each `every`-th has a line."""
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    config = msgspec.convert(GOOD, Config)

    def write(first: int, last: int, every: int = 1) -> str:
        board = ProgressState(Progress(state="Starting", stage="base", attempt=0))
        shape = {"total": 40, "per_epoch": PER_EPOCH, "batch": BATCH, "ranks": 2}
        log = MetricLogger(board, Metrics(config, 0, "GEMM"), CsvLog(None), **shape)  # type: ignore[arg-type]
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for step in range(first, last + 1):
                quiet = step != first and step % every
                monkeypatch.setattr(loggers, "LOG_SECONDS", math.inf if quiet else 0.0)
                log.step(record(step, loss=1 / step, compiled=step == 1))
                if step % PER_EPOCH == 0:
                    log.evaluated(EvaluationRecord(0.5 + step / 100, 1.0, 0.3), 1.0)
        return "".join(f"{form.format(found)}\n" for found in caplog.records)

    return write


def test_the_log_of_the_trainer_has_the_curves(written: Any) -> None:
    points = log_curves.read([written(1, 20)])
    assert [point.step for point in points] == list(range(1, 21))
    windows = [range(max(1, step - PER_EPOCH + 1), step + 1) for step in range(1, 21)]
    means = [sum(1 / step for step in window) / len(window) for window in windows]
    assert [point.loss for point in points] == pytest.approx(means, abs=1e-4), "the log has the mean of recent steps"
    assert {point.step: point.top1 for point in points if point.top1 is not None} == {10: 0.6, 20: 0.7}
    assert math.isnan(points[0].speed) and points[1].speed == BATCH / 0.5


def test_an_evaluation_between_two_lines_keeps_its_step(written: Any) -> None:
    points = log_curves.read([written(1, 20, every=7)])
    assert [point.step for point in points] == [1, 7, 10, 14, 20]
    assert [(point.step, point.epoch, point.top1) for point in points if point.top1] == [(10, 1.0, 0.6), (20, 2.0, 0.7)]
    assert math.isnan(points[2].loss)


def test_a_later_attempt_replaces_the_steps_that_it_makes_again(written: Any) -> None:
    points = log_curves.read([written(1, 15), written(11, 20)])
    assert [point.step for point in points] == list(range(1, 21))
    again = log_curves.read([written(1, 15) + written(11, 20)])
    assert list(map(repr, again)) == list(map(repr, points)), "restarted in place: one log"


@pytest.mark.parametrize(
    "line", ["INFO step 1/2", " INFO test: top-1 1e99 %, ", "\x1b[2J", "9" * 10_000, " INFO step x"]
)
def test_lines_of_others_are_ignored(line: str, written: Any) -> None:
    assert log_curves.read([f"{line}\n"]) == []
    assert len(log_curves.read([f"{line}\n" + written(1, 5)])) == 5


def job(**status: Any) -> dict[str, Any]:
    return clusterjobs.job(status=clusterjobs.running(**status))


def test_a_job_is_a_run_with_settings_seconds_and_accuracies(written: Any) -> None:
    found = cluster.of("job/digits", job(), [Log("base", 0, written(1, 20))])
    run = found.run
    assert found.missing == () and run.algorithms == ("Momentum",)
    assert run.settings["model.name"] == "resnet20"
    assert run.seconds == pytest.approx([0.5 * step for step in range(1, 21)])
    assert (run.last, run.best, run.epochs[-1]) == (0.7, 0.7, 2.0)
    reached = run.reached(0.6)
    assert reached is not None and (reached.epochs, reached.seconds) == (1.0, 5.0)


def test_without_pods_the_status_is_left_and_a_sentence_says_so() -> None:
    found = cluster.of("job/digits", clusterjobs.job(status=clusterjobs.complete()), [])
    assert found.missing == (
        "job/digits: stage base has no curve: no pod of its rank 0 is left; its last accuracy is that of the status",
    )
    run = found.run
    assert (run.last, run.epochs, len(run.loss)) == (0.994, [6.0], 1)
    assert math.isnan(run.seconds[0])
    assert comparison_picture.draw([run], "svg").startswith(b"<?xml")


def test_logs_that_begin_late_are_said(written: Any) -> None:
    found = cluster.of("job/digits", job(), [Log("base", 1, written(11, 20))])
    assert found.missing == ("job/digits: the curve of stage base begins at step 11: the logs before are gone",)


def test_a_job_without_a_step_has_nothing_to_compare() -> None:
    found = cluster.of("job/digits", clusterjobs.job(status=clusterjobs.waiting()), [])
    assert found == Found(found.run, ()) and not found.run.loss


def text(body: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    return answer


def asked(answers: Sequence[Answer], target: str = "job/digits") -> tuple[Found, list[str]]:
    async def ask() -> tuple[Found, list[str]]:
        async with ScriptedServer(answers) as server:
            return await Cluster(server.client, "team-a").read(target), server.requests

    return asyncio.run(ask())


def pods(*attempts: int) -> Answer:
    labels = [{names.LABEL_ATTEMPT: str(attempt), names.LABEL_STAGE: "base"} for attempt in attempts]
    items = [{"metadata": {"name": f"digits-base-{place}-0", "labels": found}} for place, found in enumerate(labels)]
    return says({"items": items})


def test_it_asks_for_the_logs_of_rank_0_and_puts_attempts_in_order(written: Any) -> None:
    later, earlier = written(11, 20), written(1, 15)
    found, requests = asked([says(job()), pods(1, 0), text(later), text(earlier)])
    assert [int(step) for step in found.run.steps] == list(range(1, 21)) and not found.missing
    assert "resnetboost.io/index%3D0" in requests[1] or "resnetboost.io/index=0" in requests[1]
    assert requests[2].startswith(
        "GET /api/v1/namespaces/team-a/pods/digits-base-0-0/log?container=trainer&limitBytes="
    )


def test_without_the_right_to_logs_the_sentence_names_it() -> None:
    found, _ = asked(
        [says(clusterjobs.job(status=clusterjobs.complete())), refuses(403, "Forbidden", "pods is forbidden")]
    )
    assert "pods is forbidden; ask for the verbs list on pods and get on pods/log" in found.missing[0]
    assert found.run.last == 0.994


def test_a_job_that_is_not_there_and_a_name_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="job/digits: there is no job digits in namespace team-a; -n names another"):
        asked([refuses(404, "NotFound")])
    with pytest.raises(UserError, match="can be no job's name"):
        asked([], "job/Digits_")


def test_a_namespace_without_a_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["compare", "digits", "-n", "team-a"])
    assert done.exit_code == 10 and "write job/NAME for one, or leave it out" in done.stderr


def test_json_has_no_number_for_what_is_not_known() -> None:
    from resnetboost_operator.cli.compare import text as compare_text

    run = cluster.of("job/digits", clusterjobs.job(status=clusterjobs.complete()), []).run
    told = json.loads(msgspec.json.encode(compare_text.summary([run], [0.9])))
    assert told["runs"][0]["reached"]["0.9"] == {"epochs": 6.0, "seconds": None}
