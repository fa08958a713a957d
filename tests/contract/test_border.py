"""Operator and trainer share no code; what they must agree on is held together here."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resnetboost_operator import api, manifests, names, pods, status, verdicts
from resnetboost_operator.validation import jobfile, schema
from resnetboost_trainer import config, progress, verdict

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
GOOD = Path(__file__).parents[1] / "corpus" / "good"


def trainer_failures() -> dict[str, int]:
    classes = [found for _, found in inspect.getmembers(verdict, inspect.isclass)]
    failures = [found for found in classes if issubclass(found, verdict.TrainingError)]
    return {failure.name: failure.exit_code for failure in failures}


def test_failure_classes_and_exit_codes_are_the_same_on_both_sides() -> None:
    ours = {found.name: found.exit_code for found in verdicts.ALL if found.exit_code not in (None, 0)}
    assert ours == trainer_failures()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_reads_every_stage_of_every_example(example: Path, tmp_path: Path) -> None:
    job = api.parse(schema.defaulted(jobfile.load(example)))
    for attempt, stage in enumerate(job.spec.stages):
        path = tmp_path / f"{stage.name}.yaml"
        path.write_text(manifests.config_map(job, stage, attempt)["data"][names.CONFIG_KEY])
        loaded = config.load(path)
        assert (loaded.stage, loaded.attempt, loaded.epochs) == (stage.name, attempt, stage.epochs)
        assert loaded.learning_rate.peak == stage.learning_rate.peak


def configs(name: str, folder: Path) -> Iterator[tuple[api.Stage, config.Config]]:
    """Each stage of a file of the corpus, and what the trainer reads of it."""
    job = api.parse(schema.defaulted(jobfile.load(GOOD / f"{name}.yaml")))
    for stage in job.spec.stages:
        path = folder / f"{stage.name}.yaml"
        path.write_text(manifests.config_map(job, stage, 0)["data"][names.CONFIG_KEY])
        yield stage, config.load(path)


@pytest.mark.parametrize("name", ["everything", "thor-minimal", "thor-bare", "thor-limits-of-ranges"])
def test_the_trainer_has_the_settings_of_thor_exactly_where_the_algorithm_is_thor(name: str, tmp_path: Path) -> None:
    for stage, loaded in configs(name, tmp_path):
        assert (loaded.thor is not None) == (loaded.algorithm == "THOR")
        assert plain(loaded.thor) == plain(stage.thor)
        assert (loaded.loss_scale, loaded.learning_rate.power) == (stage.loss_scale, stage.learning_rate.power)


@pytest.mark.parametrize(
    ("name", "reduce", "ranks_per_node", "has_thor"),
    [
        ("adasum-minimal", "Delta", 1, False),
        ("adasum-bare", "Delta", 1, False),
        ("adasum-gradient", "Gradient", 1, False),
        ("adasum-odd-number-of-nodes", "Delta", 2, False),
        ("adasum-one-rank-per-node", "Delta", 1, False),
        ("adasum-flat-on-one-node", "Delta", 1, False),
        ("adasum-with-thor", "Delta", 2, True),
        ("adasum-with-bare-thor", "Delta", 1, True),
    ],
)
def test_the_trainer_is_told_what_adasum_sums_across_which_ranks(
    name: str, reduce: str, ranks_per_node: int, has_thor: bool, tmp_path: Path
) -> None:
    for stage, loaded in configs(name, tmp_path):
        assert loaded.adasum is not None
        assert (loaded.adasum.reduce, loaded.adasum.ranks_per_node) == (reduce, ranks_per_node)
        assert (loaded.thor is not None) == has_thor
        assert plain(loaded.thor) == plain(stage.thor)


@pytest.mark.parametrize("name", ["everything", "thor-bare", "minimal", "adasum-null-with-momentum"])
def test_the_trainer_has_the_settings_of_adasum_exactly_where_the_algorithm_is_adasum(
    name: str, tmp_path: Path
) -> None:
    for _, loaded in configs(name, tmp_path):
        assert (loaded.adasum is not None) == (loaded.algorithm == "Adasum")


def test_the_trainer_knows_whatever_adasum_may_sum() -> None:
    assert words(config.Adasum)["reduce"] == words(api.Adasum)["reduce"]


def plain(settings: msgspec.Struct | None) -> Any:
    """What is set, without what may be left out."""
    given = msgspec.to_builtins(settings)
    return {name: value for name, value in given.items() if value is not None} if given is not None else None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (config.Device, api.Device),
        (config.Dataset, api.Dataset),
        (config.LearningRate, api.LearningRate),
        (config.Damping, api.Damping),
        (config.Checkpoint, api.Checkpoint),
        (config.Config, api.Stage),
    ],
    ids=["device", "data set", "learning rate", "damping", "checkpoint", "stage"],
)
def test_the_trainer_knows_every_word_a_job_may_use(theirs: type, ours: type) -> None:
    assert words(theirs) == words(ours)


def words(struct: type) -> dict[str, set[Any]]:
    """What the fields that take one of several words take."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    return {name: set(kind.values) for name, kind in kinds.items() if isinstance(kind, msgspec.inspect.LiteralType)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_understands_every_pods_environment(example: Path) -> None:
    job = api.parse(schema.defaulted(jobfile.load(example)))
    gang = [found for found in manifests.gang(job, job.spec.stages[0], 0) if found["kind"] == "Pod"]
    for index, pod in enumerate(gang):
        variables = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        environment = config.environment(variables)
        assert (environment.rank, environment.world_size) == (index, job.spec.device.count)
        assert (environment.checkpoints is not None) == (index == 0), "rank 0 alone touches checkpoints"
        assert environment.metrics_port == names.PORT_METRICS


def test_progress_means_the_same_on_both_sides() -> None:
    told = progress.Progress(state="Training", stage="base", attempt=2, step=7, loss=0.5, eta_seconds=9, heartbeat=8)
    understood = msgspec.json.decode(msgspec.json.encode(told), type=status.Progress)
    for field in progress.Progress.__struct_fields__:
        assert getattr(understood, field) == getattr(told, field), field


def test_the_termination_message_means_the_same_on_both_sides() -> None:
    told = verdict.Verdict("DataError", "x", 3, 11, step=7, checkpoint_step=5, top1=0.5, top5=0.9, test_loss=1.5)
    understood = msgspec.json.decode(msgspec.json.encode(told), type=pods.Report)
    assert understood == pods.Report("DataError", "x", 7, 5, 0.5, 0.9, 1.5)
