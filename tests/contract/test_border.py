"""The interface between operator and trainer, which share the API alone: config, environment, progress, exit codes."""

import inspect
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from resnetboost_api import failures as verdicts
from resnetboost_api import names
from resnetboost_api.dataset import Dataset, DatasetName
from resnetboost_api.device import Device
from resnetboost_api.model import Init, ModelName, Part, Weights
from resnetboost_api.optimizers import Adasum, Damping, Pca
from resnetboost_api.policies import Checkpoint
from resnetboost_api.stage import Algorithm, LearningRate, Schedule, Stage
from resnetboost_api.status import PolledProgress
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.manifests import devices, gang
from resnetboost_operator.manifests.config_map import config_map
from resnetboost_operator.manifests.container import PROBE_SECONDS
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.observed import pods
from resnetboost_operator.ranktable import payload
from resnetboost_operator.runs import extension
from resnetboost_operator.validation import jobfile, schema
from resnetboost_trainer import config
from resnetboost_trainer import failures as verdict
from resnetboost_trainer.data import registry as sources
from resnetboost_trainer.distributed import ranktable
from resnetboost_trainer.metrics import progress
from resnetboost_trainer.metrics.server import Server
from resnetboost_trainer.models import arch
from resnetboost_trainer.optim import registry, schedule

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
    job = parse_job(schema.defaulted(jobfile.load(example)))
    for attempt, stage in enumerate(job.spec.stages):
        path = tmp_path / f"{stage.name}.yaml"
        path.write_text(config_map(job, stage, attempt)["data"][names.CONFIG_KEY])
        loaded = config.load(path)
        assert (loaded.stage, loaded.attempt, loaded.epochs) == (stage.name, attempt, stage.epochs)
        assert loaded.learning_rate.peak == stage.learning_rate.peak


def configs(name: str, folder: Path) -> Iterator[tuple[Stage, config.Config]]:
    """Each stage's config file for the job files of the corpus, and the trainer's reading of it."""
    job = parse_job(schema.defaulted(jobfile.load(GOOD / f"{name}.yaml")))
    for stage in job.spec.stages:
        path = folder / f"{stage.name}.yaml"
        path.write_text(config_map(job, stage, 0)["data"][names.CONFIG_KEY])
        yield stage, config.load(path)


@pytest.mark.parametrize("name", ["everything", "thor-minimal", "thor-bare", "thor-limits-of-ranges"])
def test_the_trainer_has_the_settings_of_thor_exactly_where_the_algorithm_is_thor(name: str, tmp_path: Path) -> None:
    for stage, loaded in configs(name, tmp_path):
        assert (loaded.thor is not None) == (loaded.algorithm == "THOR")
        assert plain(loaded.thor) == plain(stage.thor)
        assert (loaded.loss_scale, loaded.learning_rate.power) == (stage.loss_scale, stage.learning_rate.power)


def test_the_config_has_buckets_and_compile_settings(tmp_path: Path) -> None:
    sizes = {stage.name: plain(loaded.all_reduce_fusion) for stage, loaded in configs("all-reduce-fusion", tmp_path)}
    assert sizes == {"base": {"bucketBytes": 25 * 2**20}, "fine": {"bucketBytes": 65536}}
    levels = {name: {loaded.jit_level for _, loaded in configs(name, tmp_path)} for name in ("gpu", "everything")}
    assert levels == {"gpu": {None}, "everything": {"O1"}}


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
def test_the_config_has_adasums_reduction_and_ranks_per_node(
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


@pytest.mark.parametrize(
    "name", ["everything", "pca-minimal", "pca-bare", "pca-by-sgd", "pca-limits-of-ranges", "pca-null-with-momentum"]
)
def test_the_trainer_has_the_settings_of_pca_exactly_where_the_algorithm_is_pca(name: str, tmp_path: Path) -> None:
    for stage, loaded in configs(name, tmp_path):
        assert (loaded.pca is not None) == (loaded.algorithm == "PCA")
        assert plain(loaded.pca) == plain(stage.pca)


@pytest.mark.parametrize("name", ["everything", "pca-minimal", "pca-limits-of-ranges", "snapshots-bare", "minimal"])
def test_the_config_has_the_snapshot_schedule(name: str, tmp_path: Path) -> None:
    for stage, loaded in configs(name, tmp_path):
        assert plain(loaded.snapshots) == plain(stage.snapshots)


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("minimal", [None]),
        ("pca-minimal", [None, ("base", None)]),
        ("pca-of-an-earlier-stage", [None, ("base", None), ("base", None)]),
        ("pca-of-another-job", [("base", "digits-two-stage")]),
        ("stages-start-from-the-same-one", [None, ("base", None), ("base", None)]),
        ("everything", [None, ("base", None), ("polish", None), ("base", "everything-before")]),
    ],
)
def test_the_config_has_the_source_of_initial_weights(
    name: str, sources: list[tuple[str, str | None] | None], tmp_path: Path
) -> None:
    told = [loaded.start_from for _, loaded in configs(name, tmp_path)]
    assert [(found.stage, found.job_name) if found is not None else None for found in told] == sources


def test_a_stage_with_devices_of_its_own_sums_across_nodes_of_them(tmp_path: Path) -> None:
    job = parse_job(schema.defaulted(jobfile.load(GOOD / "adasum-on-some-of-the-devices.yaml")))
    assert [len(pods_of(job, stage)) for stage in job.spec.stages] == [4, 1, 2]
    loaded = [found for _, found in configs("adasum-on-some-of-the-devices", tmp_path)]
    assert [found.adasum.ranks_per_node if found.adasum is not None else None for found in loaded] == [2, None, 1]


def test_the_trainer_knows_whatever_adasum_may_sum() -> None:
    assert words(config.Adasum)["reduce"] == words(Adasum)["reduce"]


def plain(settings: msgspec.Struct | None) -> Any:
    """The fields that are set, without optional ones."""
    given = msgspec.to_builtins(settings)
    return {name: value for name, value in given.items() if value is not None} if given is not None else None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (config.Device, Device),
        (config.Init, Init),
        (config.Weights, Weights),
        (config.Dataset, Dataset),
        (config.LearningRate, LearningRate),
        (config.Damping, Damping),
        (config.Pca, Pca),
        (config.Checkpoint, Checkpoint),
        (config.Config, Stage),
    ],
    ids=["device", "init", "weights", "data set", "learning rate", "damping", "PCA", "checkpoint", "stage"],
)
def test_the_trainer_accepts_every_enum_value_of_a_job(theirs: type, ours: type) -> None:
    assert words(theirs) == words(ours)


def test_the_config_has_weights_and_frozen_layers(tmp_path: Path) -> None:
    for _, loaded in configs("everything", tmp_path):
        assert loaded.model.init == config.Init(convolution="TruncatedNormal", head="Normal", zero_gamma=True)
        assert loaded.model.weights == config.Weights(path="/data/resnet20.safetensors", head="New")
        assert loaded.model.freeze == ("stem", "layer1")


def test_the_trainer_has_every_algorithm_schedule_and_data_set_a_job_may_name() -> None:
    assert set(get_args(Algorithm)) == registry.ALGORITHMS.keys()
    assert set(get_args(Schedule)) == schedule.SCHEDULES.keys()
    assert set(get_args(DatasetName)) == sources.SOURCES.keys()


def test_the_trainer_has_every_network_and_part_a_job_may_name() -> None:
    assert set(get_args(ModelName)) == arch.LARGE.keys() | arch.SMALL.keys()
    named = {part for name in get_args(ModelName) for part in arch.parts(name)}
    assert set(get_args(Part)) == named


def words(struct: type) -> dict[str, set[Any]]:
    """Allowed words of each enumerated field."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    return {name: set(kind.values) for name, kind in kinds.items() if isinstance(kind, msgspec.inspect.LiteralType)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_understands_every_pods_environment(example: Path) -> None:
    job = parse_job(schema.defaulted(jobfile.load(example)))
    for stage in job.spec.stages:
        for index, pod in enumerate(pods_of(job, stage)):
            variables = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
            environment = config.environment(variables)
            by_table = devices.needs_rank_table(job.spec.device, stage)
            assert (environment.index, environment.world_size) == (index, stage.device_count)
            assert (environment.rank_table is not None) == by_table
            assert (environment.coordinator is not None) == (stage.device_count > 1 and not by_table)
            assert (environment.checkpoints is not None) == (index == 0), "rank 0 alone touches checkpoints"
            assert environment.metrics_port == names.PORT_METRICS


def test_the_trainer_looks_for_the_rank_table_under_the_names_it_is_published_under() -> None:
    published = (names.RANK_TABLE_KEY, f"{names.RANK_TABLE_KEY}{payload.SUFFIX}", names.RANKS_KEY)
    assert published == (ranktable.TABLE, ranktable.PACKED, ranktable.RANKS)


def pods_of(job: Job, stage: Stage) -> list[dict[str, Any]]:
    return [found for found in gang.gang(job, stage, 0) if found["kind"] == "Pod"]


def test_progress_means_the_same_on_both_sides() -> None:
    told = progress.Progress(state="Training", stage="base", attempt=2, step=7, loss=0.5, eta_seconds=9, heartbeat=8)
    understood = msgspec.json.decode(msgspec.json.encode(told), type=PolledProgress)
    for field in progress.Progress.__struct_fields__:
        assert getattr(understood, field) == getattr(told, field), field


def test_the_readiness_probe_matches_the_trainers_endpoint() -> None:
    board = progress.ProgressState(progress.Progress(state="Training", stage="base", attempt=0))
    port = free_port()
    Server("127.0.0.1", port, board)
    board.beat()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{names.PATH_TRAINING}", timeout=60) as answer:
        assert answer.status == 200
    assert progress.FRESH_SECONDS >= 2 * PROBE_SECONDS >= 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def test_the_termination_message_means_the_same_on_both_sides() -> None:
    told = verdict.Verdict("DataError", "x", 3, 11, step=7, checkpoint_step=5, top1=0.5, top5=0.9, test_loss=1.5)
    told = msgspec.structs.replace(told, total_steps=44, loss=0.02, accuracy=0.99, resumed_step=3, skipped=("1f",))
    understood = msgspec.json.decode(msgspec.json.encode(told), type=pods.Report)
    assert understood == pods.Report("DataError", "x", 7, 5, 0.5, 0.9, 1.5, 44, 0.02, 0.99, 3, ("1f",))


# By schedule: the fields that it needs.
NEEDED: dict[str, dict[str, Any]] = {"Step": {"milestones": [2, 3.5]}, "WSD": {"decayEpochs": 1}}
RATES: list[dict[str, Any]] = [
    *({"schedule": name} | NEEDED.get(name, {}) for name in schedule.SCHEDULES),
    *({"schedule": name, "scheduleEpochs": 9} | NEEDED.get(name, {}) for name in schedule.SCHEDULES),
    {"schedule": "Polynomial", "milestones": [2]},
]


@pytest.mark.parametrize("rate", RATES, ids=lambda rate: "-".join(map(str, rate.values())))
@pytest.mark.parametrize("made", [0.5, 1.5, 2.0, 4.0, 5.0])
def test_a_run_continues_exactly_if_its_learning_rates_are_unchanged(rate: dict[str, Any], made: float) -> None:
    """The operator decides whether a stage continues; the learning rates are the trainer's."""
    per_epoch = 22
    found = jobfile.load(GOOD.parents[2] / "examples" / "digits.yaml")
    found["spec"]["stages"][0] |= {"epochs": 5, "learningRate": {"peak": 0.1, "warmupEpochs": 1.5} | rate}
    assert not schema.check(found)
    short = schema.defaulted(found)
    found["spec"]["stages"][0]["epochs"] = 8
    extended = extension.extended(short, schema.defaulted(found), extension.Made({"base": made}))
    settings = []
    for job in (short, schema.defaulted(found)):
        parsed = parse_job(job)
        settings.append(msgspec.convert(trainer_config(parsed, parsed.spec.stages[0], 0), config.Config))
    rates = [
        [schedule.learning_rate(stage, step, per_epoch) for step in range(round(made * per_epoch))]
        for stage in settings
    ]
    assert (extended.goes_on == ("base",)) == (rates[0] == rates[1])
