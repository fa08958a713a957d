"""The bench compares with what it says: a network of MindSpore's own convolutions, built as ours is."""

import pytest
from bench.contenders import worker
from mindspore import nn

from resnetboost_trainer.models import resnet

pytestmark = pytest.mark.slow


def test_the_stock_network_has_mindspores_convolutions_alone() -> None:
    with worker.stock():
        network = resnet.build("resnet20", 10, 1, 0)
    kinds = {type(cell) for _, cell in network.cells_and_names() if "Conv" in type(cell).__name__}
    assert kinds == {nn.Conv2d}
    assert not network.fuses_layers
