"""The layer shapes that THOR's cost model counts equal those of the trained network."""

from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim.thor import cost, layers


def test_resnet50() -> None:
    found, left_out = layers.find(resnet.build("resnet50", 1001, 3), 128)
    trained = {layer.name: (layer.form.outputs, layer.form.channels, layer.form.unit) for layer in found}
    assert trained == {shape.name: (shape.outputs, shape.channels, shape.unit) for shape in cost.resnet50(1001)}
    assert left_out == {}
