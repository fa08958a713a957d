"""Float16 warnings: which settings lose gradients."""

from typing import Any

import msgspec
import pytest

from resnetboost_trainer.config import Config
from resnetboost_trainer.engine import graph_key
from resnetboost_trainer.models import amp
from support import trainerconfig


def config(**changes: Any) -> Config:
    return msgspec.convert(trainerconfig.GOOD | changes, Config)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "Float32"},
        {"precision": "BFloat16"},
        {"precision": "Float16", "lossScale": 128},
        {"precision": "Float16", "dynamicLossScale": {"initial": 65536, "growthSteps": 2000}},
    ],
    ids=["single", "wide range", "static", "dynamic"],
)
def test_settings_without_gradient_loss_have_no_warning(changes: dict[str, Any]) -> None:
    assert amp.advice(config(**changes)) is None


@pytest.mark.parametrize("algorithm", ["Momentum", "THOR", "Adasum", "PCA"])
def test_float16_without_a_loss_scale_has_a_warning(algorithm: str) -> None:
    """The operator sets a dynamic loss scale for such a stage; a config file written by hand may lack it."""
    advice = amp.advice(config(precision="Float16", algorithm=algorithm))
    assert advice is not None
    assert "lossScale: 128" in advice
    assert "dynamicLossScale: {}" in advice


def test_compiled_graphs_are_keyed_by_precision() -> None:
    keys = {graph_key.environment(config(precision=precision), 1) for precision in amp.TYPES}
    assert len(keys) == len(amp.TYPES)
