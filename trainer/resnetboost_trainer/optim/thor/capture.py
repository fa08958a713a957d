"""Captures every layer's input and output gradient from a compiled backward pass, without changing the network.

While a capturing graph is compiled or run, each layer is followed by a tap: an identity whose gradients with respect to
two probes (unused parameters) are defined as the layer's input and its output's gradient. They are returned beside the
weights' gradients, without side effects, in any graph, on any device. (MindSpore's THOR replaces the layers by its own,
which loses padding, groups, dilation and biases.) A network whose trunk runs as one operator goes on doing so if all
convolutions in it are layers here: that operator then has the probes' gradients too.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.models import trunk
from resnetboost_trainer.models.trunk import CapturingTrunk
from resnetboost_trainer.optim.thor.layers import Layer


class Capture:
    """Taps for a network's layers. While `attached`, differentiate with respect to `probes` too."""

    def __init__(self, network: nn.Cell, layers: Sequence[Layer]) -> None:
        taps = {id(layer.cell): _Tapped(layer.cell, layer.name) for layer in layers}
        self._network = network
        self.probes = [probe for layer in layers for probe in taps[id(layer.cell)].probes()]
        self._places: list[tuple[nn.Cell, str, nn.Cell, nn.Cell]] = [
            (parent, child, cell, taps[id(cell)])
            for _, parent in network.cells_and_names()
            for child, cell in parent._cells.items()
            if id(cell) in taps
        ]
        self._fused = []
        for fused in trunk.fused_networks(network):
            cells = dict(fused.cells_and_names())
            convolutions = [id(cells[name]) for name in trunk.convolutions(fused.trunk.topology)]
            if all(one in taps for one in convolutions):
                self._fused.append(fused)
                capturing = CapturingTrunk(fused.trunk, [taps[one].probes() for one in convolutions])
                self._places.append((fused, "trunk", fused.trunk, capturing))

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Insert the taps for a `with` block: parameter names, checkpoints and other graphs never see them."""
        with trunk.layers_apart(self._network, but=self._fused):
            try:
                for parent, child, _, tap in self._places:
                    _replace(parent, child, tap)
                yield
            finally:
                for parent, child, cell, _ in self._places:
                    _replace(parent, child, cell)


def _replace(parent: nn.Cell, child: str, cell: nn.Cell) -> None:
    """Replace a child cell directly, since setting the attribute would rename the parameters below it."""
    parent._cells[child] = cell
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = tuple(parent._cells.values())


class _Tap(nn.Cell):
    """Identity of `output` whose gradients for the probes are `layer_input` and the output's gradient."""

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
    """A layer followed by a tap."""

    def __init__(self, layer: nn.Cell, name: str) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        self.tap = _Tap()
        self.input_probe = Parameter(Tensor(np.zeros((), np.float32)), name=f"thor.probe.{name}.input")
        self.gradient_probe = Parameter(Tensor(np.zeros((), np.float32)), name=f"thor.probe.{name}.gradient")

    def __getattr__(self, name: str) -> Any:
        """Delegate other attributes to the layer: networks read weights and sizes of their layers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def construct(self, x: Tensor) -> Tensor:
        return self.tap(x, self.layer(x), self.input_probe, self.gradient_probe)

    def probes(self) -> tuple[Parameter, Parameter]:
        """Return the probes in the order of the captured tensors: input, output gradient."""
        return self.input_probe, self.gradient_probe
