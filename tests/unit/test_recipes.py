"""Examples of published recipes: learning rate and damping of a step equal those of the recipe's own program."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from resnetboost_operator.cli import job_file
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_trainer.config import Config
from resnetboost_trainer.optim.schedule import damping, learning_rate

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGENET, CIFAR10 = 1281167, 50000  # training images


def stages(example: str, changes: Sequence[str] = ()) -> list[tuple[Config, int]]:
    """The trainer's config of each stage, and its global batch."""
    job = parse_job(job_file.load(EXAMPLES / f"{example}.yaml", changes))
    configs = [msgspec.convert(trainer_config(job, stage, 0), Config) for stage in job.spec.stages]
    ranks = [stage.device_count for stage in job.spec.stages]
    return [
        (config, count * config.local_batch_size * config.accumulation_steps)
        for config, count in zip(configs, ranks, strict=True)
    ]


def mindspore_linear(step: int, per_epoch: int) -> float:
    """_generate_liner_lr of the model zoo's lr_generator.py: lr_max 0.8, warm-up of 5 of 90 epochs."""
    total, warmup = 90 * per_epoch, 5 * per_epoch
    return 0.8 * step / warmup if step < warmup else 0.8 - 0.8 * (step - warmup) / (total - warmup)


def mindspore_poly(step: int, per_epoch: int) -> float:
    """_generate_poly_lr of the same file: lr_max 13.01, warm-up of 1 of 60 epochs."""
    total, warmup = 60 * per_epoch, per_epoch
    base = 1 - (step - warmup) / (total - warmup)
    return 13.01 * step / warmup if step < warmup else 13.01 * base * base


def mindspore_thor(initial: float, power: float, epochs: int) -> Callable[[int, int], float]:
    """get_thor_lr of the same file with decay_epochs 39."""

    def rate(step: int, per_epoch: int) -> float:
        epoch = (step + 1) / per_epoch
        return initial * math.pow(1 - epoch / epochs, power) * math.pow(0.5, (epoch >= 39) + (epoch >= 40))

    return rate


def nvidia_cosine(step: int, per_epoch: int) -> float:
    """lr_cosine_policy of DeepLearningExamples: peak 4.096, warm-up of 16 of 90 epochs; it changes once an epoch."""
    epoch = step // per_epoch
    if epoch < 16:
        return 4.096 * (epoch + 1) / 16
    return 0.5 * (1 + math.cos(math.pi * (epoch - 16) / 74)) * 4.096


def he(step: int, per_epoch: int) -> float:
    """Section 4.2 of the paper, in iterations."""
    return 0.1 * math.pow(0.1, (step >= 32000) + (step >= 48000))


def same(example: str, images: int, steps: Sequence[int], recipe: Callable[[int, int], float], ahead: int = 0) -> None:
    """At those steps of the first stage, assert that the rate equals the recipe's, `ahead` steps later."""
    config, batch = stages(example)[0]
    for step in steps:
        expected = recipe(step + ahead, images // batch)
        assert learning_rate(config, step, images // batch) == pytest.approx(expected, rel=1e-9), step


@pytest.mark.parametrize(
    ("example", "changes", "batches", "epochs"),
    [
        ("resnet50-imagenet-momentum-ascend-8", [], [2048], [90]),
        ("resnet50-imagenet-momentum-gpu-16", [], [4096], [90]),
        ("resnet50-imagenet-momentum-gpu-16", ["device.count=8", "stages[0].accumulationSteps=2"], [4096], [90]),
        ("resnet50-imagenet-lars-ascend", [], [2048], [60]),
        ("resnet50-imagenet-thor-ascend", [], [256], [45]),
        ("resnet50-imagenet-thor-gpu", [], [256], [40]),
        ("resnet50-imagenet-adasum-ascend", [], [4096], [90]),
        ("resnet50-imagenet-two-stage-ascend", [], [2048, 2048], [70, 2]),
        ("cifar10-resnet20", [], [128], [164]),
    ],
)
def test_global_batches_and_epochs(example: str, changes: list[str], batches: list[int], epochs: list[int]) -> None:
    found = stages(example, changes)
    assert [batch for _, batch in found] == batches
    assert [config.epochs for config, _ in found] == epochs


def test_steps_of_an_epoch_are_those_that_the_recipes_name() -> None:
    named = {"momentum-ascend-8": 625, "thor-ascend": 5004, "thor-gpu": 5004, "adasum-ascend": 312}
    for name, steps in named.items():
        assert IMAGENET // stages(f"resnet50-imagenet-{name}")[0][1] == steps, name


@pytest.mark.parametrize("example", ["momentum-ascend-8", "two-stage-ascend", "adasum-ascend"])
def test_mindspores_tutorials_after_the_warm_up(example: str) -> None:
    per_epoch = 312 if example == "adasum-ascend" else 625
    steps = [5 * per_epoch, 5 * per_epoch + 1, 30 * per_epoch + 7, 70 * per_epoch - 1]
    same(f"resnet50-imagenet-{example}", IMAGENET, steps, mindspore_linear)


def test_mindspores_tutorials_in_the_warm_up_are_one_step_behind_because_theirs_begins_at_no_rate() -> None:
    same("resnet50-imagenet-momentum-ascend-8", IMAGENET, [0, 1, 624, 3000], mindspore_linear, ahead=1)


def test_rates_of_mindspores_tutorials_in_numbers() -> None:
    config, _ = stages("resnet50-imagenet-two-stage-ascend")[0]
    at = {epoch: round(learning_rate(config, epoch * 625, 625), 6) for epoch in (5, 45, 69)}
    assert at == {5: 0.8, 45: 0.423529, 69: 0.197647}
    assert learning_rate(config, 0, 625) == pytest.approx(0.000256)


@pytest.mark.parametrize(
    ("example", "recipe"),
    [("thor-ascend", mindspore_thor(0.05803, 4.0839, 53)), ("thor-gpu", mindspore_thor(0.05672, 4.9687, 50))],
    ids=["Ascend", "GPU"],
)
def test_thors_rate(example: str, recipe: Callable[[int, int], float]) -> None:
    steps = [0, 1, 5003, 100080, 39 * 5004 - 2, 39 * 5004 - 1, 40 * 5004 - 2, 40 * 5004 - 1]
    same(f"resnet50-imagenet-{example}", IMAGENET, steps, recipe)


@pytest.mark.parametrize(
    ("example", "initial", "decay"), [("thor-ascend", 0.03, 0.50036), ("thor-gpu", 0.02345, 0.5467)]
)
def test_thors_damping(example: str, initial: float, decay: float) -> None:
    config, _ = stages(f"resnet50-imagenet-{example}")[0]
    for step in (0, 834, 100080, 180000):
        expected = initial * decay ** ((step + 1) / 5004 / 10)  # get_thor_damping
        assert damping(config, step, 5004) == pytest.approx(expected, rel=1e-9)


def test_nvidias_rate_at_the_end_of_each_epoch_of_the_warm_up_and_at_the_start_of_each_after_it() -> None:
    ends = [(epoch + 1) * 312 - 1 for epoch in range(16)]
    starts = [epoch * 312 for epoch in range(16, 90)]
    same("resnet50-imagenet-momentum-gpu-16", IMAGENET, ends + starts, nvidia_cosine)


def test_nvidias_weight_decay_is_one_in_32768() -> None:
    config, _ = stages("resnet50-imagenet-momentum-gpu-16")[0]
    assert (config.momentum.weight_decay, config.momentum.momentum) == (1 / 32768, 0.875)


def test_lars_rate_is_a_step_ahead_as_polynomial_is() -> None:
    same("resnet50-imagenet-lars-ascend", IMAGENET, [0, 300, 625, 20000, 37498], mindspore_poly, ahead=1)


def test_the_paper_drops_the_rate_at_32_and_48_thousand_iterations() -> None:
    same("cifar10-resnet20", CIFAR10, [0, 31999, 32000, 47999, 48000, 63959], he)


def test_snapshots_are_those_of_epochs_31_to_70_and_the_line_search_tries_two_lengths() -> None:
    (base, _), (fine, _) = stages("resnet50-imagenet-two-stage-ascend")
    assert base.snapshots is not None
    assert fine.pca is not None
    taken = [base.snapshots.from_epoch + k * base.snapshots.every_epochs for k in range(base.snapshots.keep)]
    assert (taken[0], taken[-1], len(taken)) == (31, base.epochs, 40)
    lengths = [fine.pca.line_search.contraction**k for k in range(fine.pca.line_search.max_trials)]
    assert lengths == [1, 0.55]
