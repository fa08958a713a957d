"""Exports networks as MINDIR, or as AIR where MindSpore runs on Ascend."""

import os
from pathlib import Path
from typing import Literal

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from resnetboost_trainer.checkpoint import inference
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm
from resnetboost_trainer.models.trunk import separate


def write(path: Path, trained: Trained, size: tuple[int, int], batch: int, kind: Literal["MINDIR", "AIR"]) -> None:
    """Export the network (batch, channels, h, w) -> logits, for a fixed batch and image `size` (height, width).

    AIR works on Ascend only. Raises OSError.
    """
    images = Tensor(np.zeros((batch, trained.network.channels, *size), np.float32))
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        mindspore.export(portable(inference.network(trained)), images, file_name=str(partial), file_format=kind)
        partial.chmod(0o644)  # MindSpore lets only its owner read it
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def portable(network: nn.Cell) -> nn.Cell:
    """Replace our C++ operators by MindSpore's: an exported file would refer to this machine's library."""
    separate(network)
    for _, cell in network.cells_and_names():
        if isinstance(cell, Conv2d):
            outputs, stride, padding = cell.weight.shape[0], cell.stride, cell.padding
            cell.fastest = None
            cell.convolution = ops.Conv2D(outputs, cell.kernel_size, pad_mode="pad", pad=padding, stride=stride)
        elif isinstance(cell, BatchNorm):
            cell.fused = False
    return network
