"""A sweep's space and study: what is refused and how it is said, and what a kill at any byte leaves."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from resnetboost_api import names
from resnetboost_operator import status as statuses
from resnetboost_operator.cli import job_file
from resnetboost_operator.cli.main import main
from resnetboost_operator.cli.sweep import space as spaces
from resnetboost_operator.cli.sweep.cluster import TrialJob, _Reports
from resnetboost_operator.cli.sweep.command import Request
from resnetboost_operator.cli.sweep.folder import SweepFolder
from resnetboost_operator.cli.sweep.place import how_it_failed
from resnetboost_operator.cli.sweep.space import Space, SpaceError
from resnetboost_operator.cli.sweep.study import DRAWN_AT_RANDOM, LEAST_COMPLETE, Study
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.cli.view.trial_table import TrialRow, Tried
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import schema
from support import clusterjobs, interruption

EXAMPLES = Path(__file__).parents[2] / "examples"
PEAK, BATCH, NESTEROV = "stages[0].learningRate.peak", "stages[0].localBatchSize", "stages[0].momentum.nesterov"
RATES = {"type": "float", "low": 0.01, "high": 1, "log": True}


def read(found: Any) -> Space:
    """A space that fits the digits."""
    space = spaces.of(found, "space.yaml")
    spaces.check(space, job_file.written(EXAMPLES / "digits.yaml"), "space.yaml")
    return space


def refusal(found: Any) -> str:
    with pytest.raises(SpaceError) as raised:
        read(found)
    return str(raised.value)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "parameters is missing; name a field"),
        ({"parameters": {}}, "parameters {} has no field to try; name a field"),
        ({"parameter": {}}, "'parameter' is no field of a space; it has parameters and metric"),
        ({"parameters": {PEAK: RATES}, "metric": "top7"}, "metric: 'top7' is no metric; use top1, top5 or loss"),
    ],
)
def test_a_space_that_says_nothing_is_refused_with_a_remedy(found: Any, words: str) -> None:
    assert words in refusal(found)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (3, "3 has no type; use float, int or categorical"),
        ({"type": "flot"}, "type 'flot' is unknown; use float, int or categorical"),
        ({"type": "float", "low": 0.1}, "missing required field `high`"),
        ({"type": "float", "low": "a", "high": 1}, f"parameters.{PEAK}.low: Expected `float`, got `str`"),
        ({"type": "int", "low": 1, "high": 5, "hgih": 2}, "unknown field `hgih`"),
        ({"type": "float", "low": 1, "high": 0.1}, "low 1 is above high 0.1; exchange them"),
        ({"type": "float", "low": 0.1, "high": 0.1}, "nothing to try; write this value into the job file"),
        ({"type": "float", "low": 0, "high": 1, "log": True}, "low 0 has no logarithm; use one above 0"),
        ({"type": "int", "low": 1, "high": 9, "log": True, "step": 2}, "exclude each other; leave one of them out"),
        ({"type": "int", "low": 1, "high": 3, "step": 9}, "step 9 is more than from low 1 to high 3"),
        ({"type": "categorical", "choices": [1]}, "choices are [1]; give at least two, each once"),
        ({"type": "categorical", "choices": [1, 1]}, "give at least two, each once"),
        (
            {"type": "float", "low": 0.01, "high": 1e6},
            "value 1000000.0: spec.stages[0].learningRate.peak: 1000000.0 is",
        ),
    ],
)
def test_values_that_cannot_be_tried_are_refused_by_field_value_and_remedy(parameter: Any, words: str) -> None:
    told = refusal({"parameters": {PEAK: parameter}})
    assert words in told and told.startswith(f"space.yaml: parameters.{PEAK}")


@pytest.mark.parametrize(
    ("path", "parameter", "words"),
    [
        ("stages[0].learningRat.peak", RATES, "no such field; did you mean learningRate?"),
        ("stages[3].epochs", {"type": "int", "low": 2, "high": 3}, "spec.stages has no [3]; its 1 entries count"),
        ("stages[0].epochs", {"type": "float", "low": 2, "high": 9}, "value 4.625: spec.stages[0].epochs"),
        ("stages[0].epochs", {"type": "int", "low": 1, "high": 9}, "use fewer warmupEpochs than epochs"),
        ("metadata.name", {"type": "categorical", "choices": ["a", "b"]}, "is no setting of the training"),
    ],
)
def test_a_path_whose_values_the_job_does_not_take_is_refused(path: str, parameter: Any, words: str) -> None:
    assert words in refusal({"parameters": {path: parameter}})


def test_one_field_by_two_paths_is_refused() -> None:
    told = refusal({"parameters": {PEAK: RATES, f"spec.{PEAK}": RATES}})
    assert f"parameters.spec.{PEAK} is the same field as {PEAK}" in told


@pytest.fixture
def space() -> Space:
    return spaces.read(EXAMPLES / "sweep" / "digits.yaml")


def test_the_example_fits_its_job_whose_own_values_come_first(space: Space, tmp_path: Path) -> None:
    written = job_file.written(EXAMPLES / "digits.yaml")
    spaces.check(space, written, "space")
    own = spaces.own_values(space, schema.defaulted(written))
    assert own == {PEAK: 0.1, BATCH: 32, NESTEROV: False}
    study = Study(tmp_path / "journal", space, 1, prunes=True)
    study.suggest_first(own)
    assert study.next().values == own
    assert study.next().values != own


def request(space: Space) -> Request:
    written = job_file.written(EXAMPLES / "digits.yaml")
    return Request(
        name="digits",
        written=written,
        space=space,
        trials=1,
        parallel=1,
        on="here",
        namespace="",
        seed=1,
        prunes=True,
        place="digits.yaml",
    )


@pytest.mark.parametrize(
    "parameter",
    [
        RATES,
        {"type": "int", "low": 16, "high": 64, "step": 16},
        {"type": "categorical", "choices": [16, 32]},
    ],
)
def test_the_same_space_goes_on_and_another_is_refused(parameter: dict[str, Any], tmp_path: Path) -> None:
    path = PEAK if parameter["type"] == "float" else BATCH
    folder = SweepFolder(tmp_path)
    begun = folder.enter(request(read({"parameters": {path: parameter}})).record())
    assert folder.enter(request(read({"parameters": {path: parameter}})).record()) == begun
    with pytest.raises(UserError, match="has a sweep with another space"):
        folder.enter(request(read({"parameters": {path: parameter}, "metric": "loss"})).record())


@pytest.mark.parametrize("options", [[], ["--fresh"]], ids=["sweep", "sweep --fresh"])
@pytest.mark.parametrize("record", [None, "method: bayes\n"], ids=["without a record", "of another tool"])
def test_a_folder_with_the_users_own_files_is_refused(record: str | None, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text("mine")
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "data.csv").write_text("mine")
    if record is not None:
        (tmp_path / "sweep.yaml").write_text(record)
    files = (EXAMPLES / "digits.yaml", "--space", EXAMPLES / "sweep" / "digits.yaml", "--trials", 1, "--out", tmp_path)
    result = CliRunner().invoke(main, ["sweep", *map(str, files), *options])
    assert result.exit_code == 10 and "--out" in result.stderr
    assert (tmp_path / "best.yaml").read_text() == (tmp_path / "trials" / "data.csv").read_text() == "mine"


def test_a_sweep_leaves_other_files_in_its_folder_alone(tmp_path: Path, space: Space) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    folder = SweepFolder(tmp_path)
    with folder.locked():
        folder.enter(request(space).record())
        folder.clear()
    assert (tmp_path / "job.yaml").read_text() == "mine" and not folder.record_file.exists()


def test_a_kill_at_any_removal_leaves_no_journal_to_another_sweep(tmp_path: Path, space: Space) -> None:
    for kills in itertools.count():
        folder = SweepFolder(tmp_path / str(kills))
        with folder.locked():
            folder.enter(request(space).record())
        (folder.run(0) / "logs").mkdir(parents=True)
        folder.journal.write_text("results")
        ended = interruption.killed_at_removal(kills, folder.clear)
        with folder.locked(), contextlib.suppress(UserError):
            folder.enter(msgspec.structs.replace(request(space), seed=7).record())
            assert not folder.journal.exists() and not folder.trials.exists()
        if ended:
            assert kills > 2 and folder.record_file.exists()
            return


def test_another_place_is_refused_with_its_option(tmp_path: Path, space: Space) -> None:
    folder, asked = SweepFolder(tmp_path), request(space)
    folder.enter(msgspec.structs.replace(asked, on="cluster").record())
    with pytest.raises(UserError) as caught:
        folder.enter(asked.record())
    says = "has a sweep with --on cluster, and this one has --on here; use --on cluster, another --out, or --fresh"
    assert str(caught.value) == f"{tmp_path} {says}"


@pytest.mark.parametrize(
    ("kept", "options", "refused"),
    [
        ("team-a", (), False),
        ("team-a", ("-n", "team-a"), False),
        ("team-a", ("-n", "team-b"), True),
        ("team-b", (), True),
        ("", ("-n", "team-b"), False),  # a sweep of version 0.2, which did not keep it
    ],
)
def test_another_namespace_is_refused(
    kept: str, options: tuple[str, ...], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    space = spaces.read(EXAMPLES / "sweep" / "digits.yaml")
    record = msgspec.structs.replace(request(space), on="cluster", namespace=kept).record()
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    folder.enter({field: value for field, value in record.items() if value})
    study = Study(folder.journal, space, 1, prunes=True)
    study.complete(study.next(), 0.9)
    files = (EXAMPLES / "digits.yaml", "--space", EXAMPLES / "sweep" / "digits.yaml", "--out", folder.path)
    result = CliRunner().invoke(main, ["sweep", *map(str, files), "--on", "cluster", "--trials", "1", *options])
    if refused:
        assert result.exit_code == 10 and f"use --namespace {kept}, another --out, or --fresh" in result.stderr
    else:
        assert result.exit_code == 0 and "already; --trials adds more" in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("reason", "how"), [("NumericsError", "diverged"), ("Diverged", "diverged"), ("DataError", "failed")]
)
def test_a_trial_that_diverged_is_told_from_one_that_failed_otherwise(reason: str, how: str) -> None:
    attempt = {"attempt": 2, "stage": "base", "reason": reason, "endTime": "2026-11-25T12:00:00Z"}
    status = clusterjobs.failed("attempt 2: maxRollBacks: 2 is used up", attempts=[attempt])
    assert how_it_failed(statuses.from_dict(status)).how == how


def test_without_a_cluster_no_folder_of_the_sweep_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    files = (EXAMPLES / "digits.yaml", "--space", EXAMPLES / "sweep" / "digits.yaml")
    result = CliRunner().invoke(main, ["sweep", *map(str, files), "--on", "cluster"])
    assert result.exit_code == 10 and "kubeconfig" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_job_outside_of_the_space_has_no_first_trial_of_its_own(space: Space) -> None:
    for path, value in ((PEAK, 3), (BATCH, 24), (BATCH, True), (NESTEROV, 0)):
        job = spaces.applied(job_file.written(EXAMPLES / "digits.yaml"), {path: value})
        assert spaces.own_values(space, job) is None


def tried(study: Study, count: int) -> list[dict[str, Any]]:
    """Trials that are complete; the value is that of the rate."""
    found = []
    for _ in range(count):
        trial = study.next()
        study.report(trial, 1, float(trial.values[PEAK]))
        study.complete(trial, float(trial.values[PEAK]))
        found.append(dict(trial.values))
    return found


def test_values_are_in_the_space_and_those_of_the_seed_wherever_the_sweep_was_interrupted(
    space: Space, tmp_path: Path
) -> None:
    whole = tried(Study(tmp_path / "whole", space, 7, prunes=True), DRAWN_AT_RANDOM + 4)
    parts = [tried(Study(tmp_path / "parts", space, 7, prunes=True), 3) for _ in range(4)]
    assert [values for part in parts for values in part] == whole
    assert len({values[PEAK] for values in whole}) == len(whole), "no values are drawn again"
    assert all(space.parameters[path].holds(value) for values in whole for path, value in values.items())
    assert tried(Study(tmp_path / "other", space, 8, prunes=True), 1) != whole[:1]


def test_a_kill_at_any_byte_loses_no_result_and_begins_no_trial_twice(space: Space, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    study = Study(journal, space, 1, prunes=True)
    marks = [(0, 0)]  # bytes that were on disk when so many results were
    for number in range(3):
        trial = study.next()
        study.report(trial, 1, 0.5)
        if number == 1:
            study.begin_to_prune(trial, "below")
            study.prune(trial, "below")
        else:
            study.complete(trial, 0.1 * number)
        marks.append((journal.stat().st_size, number + 1))
    text, rows = journal.read_bytes(), study.rows()
    for end in range(0, len(text), 11):
        journal.write_bytes(text[:end])
        again = Study(journal, space, 1, prunes=True)
        least = max(done for size, done in marks if size <= end)
        assert again.rows()[:least] == rows[:least]
        drawn = {row.number: row.parameters for row in again.rows()}
        unfinished = again.unfinished()
        assert len(again.rows()) == sum(row.state != "Running" for row in again.rows()) + len(unfinished)
        for trial in unfinished:
            assert trial.values.items() >= drawn[trial.number].items(), "what was drawn stays"
            assert trial.values.keys() == space.parameters.keys()
            again.complete(trial, 0.9)
        assert again.next().number == again.count - 1
        reopened = Study(journal, space, 1, prunes=True)
        assert reopened.rows() == again.rows(), "what is appended after a torn line is whole"


def test_a_damaged_journal_is_named(space: Space, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text('{"op_code":\n{"op_code": 0}\n')
    with pytest.raises(UserError, match=r"journal is damaged .*--fresh"):
        Study(tmp_path / "journal", space, 1, prunes=True)


@pytest.mark.parametrize(("metric", "bad"), [("top1", 0.2), ("loss", 0.9)])
def test_what_is_below_the_median_of_enough_trials_is_ended_early(
    space: Space, tmp_path: Path, metric: Any, bad: float
) -> None:
    found = Space(space.parameters, metric)
    study, patient = (Study(tmp_path / name, found, 1, prunes=name == "a") for name in "ab")
    for one in (study, patient):
        first = one.next()
        assert not one.report(first, 1, bad), "nothing to compare with"
        one.complete(first, 0.5)
        tried_so_far = 1
        while tried_so_far < LEAST_COMPLETE:
            trial = one.next()
            assert not one.report(trial, 1, 0.5)
            one.complete(trial, 0.5)
            tried_so_far += 1
    assert study.report(study.next(), 1, bad)
    assert not study.report(study.next(), 1, 0.5)
    assert not patient.report(patient.next(), 1, bad)


def test_the_best_is_the_first_of_the_best_complete_ones(space: Space, tmp_path: Path) -> None:
    study = Study(tmp_path / "journal", Space(space.parameters, "loss"), 1, prunes=True)
    assert study.best() is None
    for value in (0.4, 0.3, 0.3):
        study.complete(study.next(), value)
    failed, pruned = study.next(), study.next()
    study.fail(failed, "no data")
    study.report(pruned, 1, 0.1)
    study.prune(pruned, "below the median at epoch 1")
    best = study.best()
    assert best is not None and best.number == 1
    assert [(row.state, row.value, row.note) for row in study.rows()[3:]] == [
        ("Failed", None, "no data"),
        ("Pruned", 0.1, "below the median at epoch 1"),
    ]


def test_importances_find_the_parameter_that_decides(space: Space, tmp_path: Path) -> None:
    study = Study(tmp_path / "journal", space, 1, prunes=True)
    assert study.importances() == {}
    tried(study, 30)
    assert next(iter(study.importances())) == PEAK


def of_cluster(status: dict[str, Any], **annotations: str) -> TrialRow | None:
    job = clusterjobs.job(status=status)
    text = trial_table.annotation(Tried("uid", "top1", {PEAK: 0.25, NESTEROV: True}))
    labels = {names.LABEL_TRIAL: "3"}
    job["metadata"] |= {"labels": labels, "annotations": {names.ANNOTATION_TRIAL: text, **annotations}}
    return trial_table.of_job(job, clusterjobs_status(job))


def clusterjobs_status(job: dict[str, Any]) -> Any:
    from resnetboost_operator import status as statuses

    return statuses.from_dict(job["status"])


def test_a_job_of_a_cluster_says_its_value_and_parameters() -> None:
    row = of_cluster(clusterjobs.complete())
    assert row == TrialRow(3, "Complete", 0.994, {PEAK: 0.25, NESTEROV: True})
    pruned = of_cluster(clusterjobs.running(), **{names.ANNOTATION_PRUNED: "below\x1b[31m"})
    assert pruned is not None and (pruned.state, pruned.note) == ("Pruned", r"below\x1b[31m")
    for text in ("[" * 10**5, "{}", '{"sweep": 1}'):
        assert of_cluster(clusterjobs.complete(), **{names.ANNOTATION_TRIAL: text}) is None


def test_an_epoch_of_a_job_is_reported_with_its_own_value() -> None:
    reported: list[tuple[int, float]] = []

    def report(epoch: int, value: float) -> bool:
        reported.append((epoch, value))
        return False

    reports = _Reports(report, epochs=6)
    for stage, before, step, top1 in (
        ("base", 0, 1, None),
        ("base", 0, 5100, 0.4),
        ("base", 0, 9980, 0.4),  # is shown as epoch 2.0
        ("base", 0, 10000, 0.4),  # not evaluated yet
        ("base", 0, 10100, 0.55),
        ("base", 0, 12000, 0.55),
        ("fine", 3, 0, None),
        ("fine", 3, 5100, 0.7),
    ):
        progress = {**clusterjobs.PROGRESS, "stage": stage, "epoch": round(step / 5000, 2), "top1": top1}
        status = clusterjobs.running(progress=progress, stage=stage, stages=[{"name": stage, "state": "Running"}])
        reports.take(TrialJob("digits-0", "uid", statuses.from_dict(status), before), "top1")
    assert reported == [(1, 0.4), (2, 0.55), (3, 0.55), (4, 0.7)]


def test_paths_are_shown_by_the_end_that_tells_them_apart() -> None:
    paths = [PEAK, BATCH, "stages[1].learningRate.peak"]
    assert [trial_table.short(path, paths) for path in paths] == [
        PEAK,
        "localBatchSize",
        "stages[1].learningRate.peak",
    ]
