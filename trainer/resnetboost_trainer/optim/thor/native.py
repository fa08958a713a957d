"""Computes traces and Kronecker factors by the C++ operators, all layers in one call, for CPUs that have them.

Same functions and values as `host`, which computes what the operators do not know: Embedding and LayerNorm. A
convolution's covariances need no im2col (kernels/covariance.cpp): for resnet20 on 8x8 images a tenth of the arithmetic.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.kernels import arrays
from resnetboost_trainer.optim.thor import host
from resnetboost_trainer.optim.thor.blocks import Blocks
from resnetboost_trainer.optim.thor.host import Captured

Floats = NDArray[np.float32]

# A window's rows and columns as the operator has them: kernel, stride, dilation, pad, outputs.
Side = tuple[int, int, int, int, int]


class Native:
    """The functions of `host` with the operators of a library."""

    def __init__(self, operators: Path) -> None:
        self.operators = operators

    def all_traces(self, everything: Sequence[Captured]) -> list[tuple[float, float]]:
        """Return (tr A, tr G) of each layer, or (tr F, 1) for LayerNorm."""
        known = [one for one in everything if _is_known(one)]
        one = np.ones(1, np.float32)
        weights = [host.uses(captured) if captured.layer.form.kind == "conv" else one for captured in known]
        tensors = [_single(captured.input) for captured in known] + [_single(captured.gradient) for captured in known]
        sums = np.empty(2 * len(known), np.float32)
        if known:
            arrays.call(self.operators, "weighted_squares", *tensors, *weights, *[one] * len(known), sums)
        found = iter(zip(known, sums[: len(known)].tolist(), sums[len(known) :].tolist(), strict=True))
        return [_scaled(*next(found)) if _is_known(captured) else host.traces(captured) for captured in everything]

    def all_factors(self, everything: Sequence[Captured]) -> list[list[Floats]]:
        """Return each layer's factors in the blocks of its form, each (groups * count, size, size)."""
        known = [captured for captured in everything if _is_known(captured)]
        found = iter(self._factors(known) if known else [])
        return [next(found) if _is_known(captured) else host.factors(captured) for captured in everything]

    def _factors(self, known: Sequence[Captured]) -> list[list[Floats]]:
        forms, scales, images, blocks = [], [], [], []
        for captured in known:
            form = captured.layer.form
            sides = (_sides(captured), _pixel_by_pixel(captured))
            for side, cut, tensor in zip(sides, form.factors, (captured.input, captured.gradient), strict=True):
                forms.append([*side[0], *side[1], form.groups, cut.count, cut.size])
                images.append(_images(captured, tensor))
                blocks.append(_empty(form.groups, cut))
            scales += [1 / captured.rows, captured.gradient_factor]
        lists = np.array(forms, np.int32), np.array(scales, np.float32)
        arrays.call(self.operators, "covariances", *lists, *images, *blocks)
        return [blocks[k : k + 2] for k in range(0, len(blocks), 2)]


def _is_known(captured: Captured) -> bool:
    return captured.layer.form.kind in ("conv", "dense")


def _scaled(captured: Captured, a: float, g: float) -> tuple[float, float]:
    return a / captured.rows, g * captured.gradient_factor


def _sides(captured: Captured) -> tuple[Side, Side]:
    """Return how the layer's window moves along the rows and the columns of its input."""
    window = captured.layer.window
    if window is None:
        return _pixel_by_pixel(captured)
    top, _, left, _ = window.pads(*captured.input.shape[2:])
    rows, columns = zip(
        window.kernel, window.stride, window.dilation, (top, left), captured.gradient.shape[2:], strict=True
    )
    return rows, columns


def _pixel_by_pixel(captured: Captured) -> tuple[Side, Side]:
    """Return the sides of a window of one pixel, which gives the covariance of the output gradients."""
    height, width = captured.gradient.shape[2:] if captured.layer.form.kind == "conv" else (1, 1)
    return (1, 1, 1, 0, height), (1, 1, 1, 0, width)


def _images(captured: Captured, tensor: NDArray[Any]) -> Floats:
    """Return a tensor as images (n, channels, height, width); those of a dense layer have one pixel."""
    single = _single(tensor)
    return single if captured.layer.form.kind == "conv" else single.reshape(-1, single.shape[-1], 1, 1)


def _single(tensor: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(tensor, np.float32)


def _empty(groups: int, cut: Blocks) -> Floats:
    return np.empty((groups * cut.count, cut.size, cut.size), np.float32)
