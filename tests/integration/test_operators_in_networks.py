"""C++ operators in whole networks against MindSpore's own: gradients and running statistics, in both modes.

test_operators.py tests each operator against its formula.
"""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn

from resnetboost_trainer.models import arch
from resnetboost_trainer.models.layers.conv import Conv2d
from support import familygradients

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operators")]

DEEP = set(familygradients.NAMES) - set(familygradients.SHALLOW)
PARTS = ("stem", "layer1", "layer2", "layer3", "layer4", "head")
# What distinguishes these from the others is in the stem, in shortcuts and within convolutions.
VARIANTS = {"deep": ("stem", "layer2"), "deepbasic": (), "grouped": ("layer1",)}
TABLE = [
    *((name, ()) for name in (*familygradients.NAMES, *VARIANTS)),
    *((kind, (part,)) for kind in familygradients.KINDS for part in VARIANTS.get(kind, PARTS)),
]
TABLE.remove(("small", ("layer4",)))


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        pytest.param(
            *row,
            id=f"{row[0]}-{'-'.join(row[1]) or 'whole'}",
            marks=pytest.mark.long if row[0] in DEEP else [],
        )
        for row in TABLE
    ],
)
def test_a_step_equals_one_with_mindspores_operators(name: str, frozen: tuple[str, ...]) -> None:
    expected = familygradients.slow(name, frozen)
    network = familygradients.network(name, frozen)
    learning = {key for key, _ in network.parameters_and_names() if arch.part(key) not in frozen}
    assert expected.gradients.keys() == {key for key in learning if not key.endswith(arch.STATISTICS)}
    for mode in familygradients.MODES:
        found = familygradients.once(network, mode)
        assert not familygradients.wrong(found, expected, familygradients.BOUND), mode


class Strides(nn.Cell):  # type: ignore[misc]
    """Two convolutions that differ only in stride: (n, 8, h, w) -> (n, 8, h, w), (n, 8, h / 2, w / 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.second = (Conv2d(8, 8, 3, stride, 1, weight_init="ones") for stride in (1, 2))

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.every(x), self.second(x)


@pytest.mark.parametrize("mode", familygradients.MODES)
def test_convolutions_of_different_strides_are_distinguished(mode: str) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((2, 8, 6, 6), np.float32))
    mindspore.set_context(mode=familygradients.MODES[mode])
    try:
        every, second = (y.asnumpy() for y in Strides()(x))
    finally:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
    np.testing.assert_allclose(second, every[:, :, ::2, ::2], atol=1e-5)
