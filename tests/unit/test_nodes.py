"""What a node tells: whether it is heard of, and by Huawei's labels which Ascend chip it has."""

import pytest

from resnetboost_operator.observed import nodes
from resnetboost_operator.ranktable.chips import Chip


@pytest.mark.parametrize(
    ("labels", "chip"),
    [
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "module"}, "910A"),
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "half"}, "910A"),
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "card"}, "910A"),
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "module-910b-8"}, "910B"),
        ({"accelerator-type": "module-910b-16"}, "910B"),
        ({"accelerator-type": "card-910b-2"}, "910B"),
        ({"accelerator-type": "module-a3-16"}, "A3"),
        ({"accelerator-type": "module-a3-16-super-pod"}, "A3"),
        ({"accelerator": "huawei-npu"}, "950"),
        ({"accelerator": "huawei-Ascend310P", "accelerator-type": "card"}, None),
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "tomorrow"}, None),
        ({}, None),
    ],
    ids=lambda value: " ".join(value.values()) or "no label" if isinstance(value, dict) else str(value),
)
def test_labels_of_a_node_tell_its_chip(labels: dict[str, str], chip: Chip | None) -> None:
    assert nodes.view({"metadata": {"name": "n", "labels": labels}}).chip == chip
