"""The gradient noise scale against direct computation in float64, on gradients whose mean and covariance are known."""

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import generate_latest

from resnetboost_api.status import Status
from resnetboost_operator.runs import curves, metricsfile, noise, report
from resnetboost_operator.runs.noise import Noise
from resnetboost_operator.validation import notes, schema
from resnetboost_trainer.config import Config
from resnetboost_trainer.engine import noise_scale
from resnetboost_trainer.engine.noise_scale import NoiseRecord, NoiseScale
from resnetboost_trainer.metrics.prometheus import Metrics
from support import clusterjobs
from support.steprecords import record
from support.trainerconfig import GOOD

SMALL, PARTS = 8, 4


def gradients(
    rng: np.random.Generator, mean: NDArray[np.float64], deviation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of each small batch, (parts, weights): means over images whose gradients vary by `deviation`."""
    images = mean + deviation * rng.standard_normal((PARTS, SMALL, len(mean)))
    found: NDArray[np.float64] = images.mean(axis=1)
    return found


def taken(scale: NoiseScale, found: NDArray[np.float64]) -> NoiseRecord:
    return scale.add(float(np.square(found).sum(axis=1).mean()), float(np.square(found.mean(axis=0)).sum()))


def test_a_step_gives_the_sample_variance_of_its_small_batches() -> None:
    rng = np.random.default_rng(1)
    found = gradients(rng, rng.standard_normal(50), rng.uniform(0.5, 2, 50))
    record = taken(NoiseScale(SMALL, SMALL * PARTS), found)
    trace = SMALL * np.var(found, axis=0, ddof=1).sum()
    assert record.trace == pytest.approx(trace, rel=1e-12)
    assert record.signal == pytest.approx(np.square(found.mean(axis=0)).sum() - trace / (SMALL * PARTS), rel=1e-12)
    assert record.scale == pytest.approx(record.trace / record.signal, rel=1e-12)


@pytest.mark.parametrize("noise", [0.3, 3.0, 10.0])
def test_the_running_scale_is_that_of_the_known_gradients(noise: float) -> None:
    rng = np.random.default_rng(2)
    mean, deviation = rng.standard_normal(400), noise * rng.uniform(0.5, 2, 400)
    scale = NoiseScale(SMALL, SMALL * PARTS)
    records = [taken(scale, gradients(rng, mean, deviation)) for _ in range(1000)]
    trace, signal = np.square(deviation).sum(), np.square(mean).sum()
    assert np.mean([record.trace for record in records]) == pytest.approx(trace, rel=0.01)
    assert np.mean([record.signal for record in records]) == pytest.approx(signal, rel=0.05)
    assert records[-1].scale == pytest.approx(trace / signal, rel=0.15)


def test_the_averages_are_of_trace_and_signal_and_not_of_their_ratio() -> None:
    rng = np.random.default_rng(3)
    scale, traces, signals = NoiseScale(SMALL, SMALL * PARTS, smoothing=0.9), list[float](), list[float]()
    for _ in range(30):
        record = taken(scale, gradients(rng, np.full(20, 0.3), np.ones(20)))
        traces.append(record.trace)
        signals.append(record.signal)
        weights = 0.9 ** np.arange(len(traces))[::-1]
        signal = weights @ signals
        assert record.scale == (pytest.approx(weights @ traces / signal, rel=1e-9) if signal > 0 else None)


def test_without_a_positive_signal_there_is_no_scale() -> None:
    scale = NoiseScale(SMALL, SMALL * PARTS)
    assert scale.add(1.0, 0.1).scale is None, "all noise"
    assert NoiseScale(SMALL, SMALL * PARTS).add(1.0, 1.0).scale == 0, "no noise"


@pytest.mark.parametrize(
    ("changes", "ranks", "batches"),
    [
        ({}, 4, None),
        ({"gradientNoise": True}, 1, None),
        ({"gradientNoise": True}, 4, (32, 128)),
        ({"gradientNoise": True, "accumulationSteps": 3}, 1, (32, 96)),
        ({"gradientNoise": True, "accumulationSteps": 3}, 2, (32, 192)),
    ],
)
def test_it_is_measured_where_a_step_has_two_small_batches(
    changes: dict[str, object], ranks: int, batches: tuple[int, int] | None
) -> None:
    found = noise_scale.of(msgspec.convert(GOOD | {"localBatchSize": 32} | changes, Config), ranks)
    assert (None if found is None else (found.small, found.large)) == batches


def test_the_gauge_has_the_scale_while_there_is_one() -> None:
    metrics = Metrics(msgspec.convert(GOOD | {"gradientNoise": True}, Config), 0, "GEMM")

    def shown() -> list[str]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        return [
            line.rpartition(" ")[2] for line in lines if line.startswith("resnetboost_gradient_noise_scale_images{")
        ]

    metrics.observe_step(record(noise=NoiseRecord(2.0, -1.0, None)), 2)
    assert shown() == [], "a scale of 0 would be wrong"
    metrics.observe_step(record(noise=NoiseRecord(2.0, 0.01, 200.0)), 2)
    metrics.observe_step(record(left_out=True), 2)
    assert shown() == ["200.0"], "a step that is left out measures nothing"
    metrics.observe_step(record(noise=NoiseRecord(2.0, -1.0, None)), 2)
    assert shown() == [], "the noise is larger than what the batch can tell"
    metrics.observe_step(record(noise=NoiseRecord(2.0, 0.02, 100.0)), 2)
    assert shown() == ["100.0"]


def test_the_report_has_the_scale_beside_the_global_batch() -> None:
    job = schema.defaulted(clusterjobs.job())
    job["spec"]["stages"][0]["accumulationSteps"] = 3
    scales = ["", "50", "100", "300"]
    rows = [{"stage": "base", "attempt": "0", "step": str(k), "noise_scale": text} for k, text in enumerate(scales)]
    measured = metricsfile.measured(rows)
    assert noise.by_stage(measured, job) == [Noise("base", 100, 300, 2 * 32 * 3)]
    page = report.page(job, Status(), {}, b"", curves.Did(), noises=noise.by_stage(measured, job))
    assert "Gradient noise" in page and "<td>192</td>" in page and "<td>300</td>" in page
    assert noise.by_stage(metricsfile.measured(rows[:1]), job) == []
    assert "Gradient noise" not in report.page(job, Status(), {}, b"", curves.Did())


def test_a_step_of_one_batch_is_noted() -> None:
    job = schema.defaulted(clusterjobs.job())
    stage = job["spec"]["stages"][0]
    stage |= {"gradientNoise": True, "deviceCount": 1}
    (found,) = notes.notes(job["spec"])
    assert found.startswith("spec.stages[0].gradientNoise: ") and "use more devices or accumulationSteps" in found
    stage["accumulationSteps"] = 2
    assert list(notes.notes(job["spec"])) == []
