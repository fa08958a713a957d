"""Gets every layer's input and the gradient of its output out of a compiled backward pass, without changing a network.

While a capturing graph is compiled or run, each layer stands behind a tap: an identity whose gradients with respect to
two probes - parameters that nothing reads - are by definition the layer's input and its output's gradient. So they
come out beside the weights' gradients, with no side effects, in any graph, on any device. (MindSpore's THOR swaps the
layers for its own, which loses padding, groups, dilation and biases.)
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.optim.thor.layers import Layer


class Capture:
    """The taps of a network's layers. Differentiate by `probes` too, while `attached`."""

    def __init__(self, network: nn.Cell, layers: Sequence[Layer]) -> None:
        taps = {id(layer.cell): _Tapped(layer.cell, layer.name) for layer in layers}
        self.probes = [probe for layer in layers for probe in taps[id(layer.cell)].probes()]
        self._places = [
            (parent, child, cell, taps[id(cell)])
            for _, parent in network.cells_and_names()
            for child, cell in parent._cells.items()
            if id(cell) in taps
        ]

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Put the taps in and take them out again: names, checkpoints and other graphs never see them."""
        try:
            for parent, child, _, tap in self._places:
                _replace(parent, child, tap)
            yield
        finally:
            for parent, child, cell, _ in self._places:
                _replace(parent, child, cell)


def _replace(parent: nn.Cell, child: str, cell: nn.Cell) -> None:
    """Directly, since setting the attribute would rename the parameters below."""
    parent._cells[child] = cell
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = tuple(parent._cells.values())


class _Tap(nn.Cell):
    """The identity of `output`; its gradients by the probes: `layer_input`, and the gradient of the output."""

    def construct(self, layer_input: Tensor, output: Tensor, input_probe: Tensor, gradient_probe: Tensor) -> Tensor:
        return output

    def bprop(
        self,
        layer_input: Tensor,
        output: Tensor,
        input_probe: Tensor,
        gradient_probe: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> tuple[Tensor, ...]:
        return ops.zeros_like(layer_input), dout, layer_input, dout


class _Tapped(nn.Cell):
    """A layer with a tap behind it."""

    def __init__(self, layer: nn.Cell, name: str) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        self.tap = _Tap()
        self.input_probe = Parameter(Tensor(np.zeros((), np.float32)), name=f"thor.probe.{name}.input")
        self.gradient_probe = Parameter(Tensor(np.zeros((), np.float32)), name=f"thor.probe.{name}.gradient")

    def __getattr__(self, name: str) -> Any:
        """Of the layer, what is not the tap's own: networks read weights and sizes of their layers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def construct(self, x: Tensor) -> Tensor:
        return self.tap(x, self.layer(x), self.input_probe, self.gradient_probe)

    def probes(self) -> tuple[Parameter, Parameter]:
        """In the order in which captured tensors come: input, gradient of the output."""
        return self.input_probe, self.gradient_probe
