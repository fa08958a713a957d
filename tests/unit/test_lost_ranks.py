"""Which errors of a graph with collectives mean that another rank was lost."""

import pytest

from resnetboost_trainer.distributed import communicator

KERNEL = """
----------------------------------------------------
- Kernel error:
----------------------------------------------------
Launch kernel failed: {}

- The Function Call Stack: (For framework developers)
In file trainer/resnetboost_trainer/distributed/buckets.py:48, 26~45/            summed.append(self.reduce(bucket))/
"""


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (KERNEL.format("Default/buckets-Buckets/AllReduce-op19"), True),
        ("HcclAllReduce failed, ret: 9", True),
        ("ncclAllReduce: unhandled system error", True),
        (KERNEL.format("Default/network-ResNet/conv1-Conv2d/fastest-_OneDNN/Custom-op0"), False),
        ("For 'Conv2D', the dtype of 'x' is not supported", False),
    ],
    ids=["CPU", "Ascend", "GPU", "our operator", "type"],
)
def test_only_a_failed_collective_blames_other_ranks(words: str, others: bool) -> None:
    assert communicator.of_collective(RuntimeError(words)) is others
