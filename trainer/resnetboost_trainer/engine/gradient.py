"""The compiled graphs a training step is made of: gradient, reduction, and (in optimizers/) update.

On the CPU they are separate graphs, so that compute and collective time can be told apart; between them travels one
flat float32 buffer: [gradients ..., loss, accuracy, tail ...]. The tail carries what ranks tell each other in passing.
With buckets the gradient's graph has the all-reduces too, and the buffer comes summed from it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.distributed.buckets import Buckets

# Places in the scalars of a reduction; from TAIL on it is what the ranks told each other.
NORM_SQUARED, LOSS, ACCURACY, TAIL = range(4)


class Batch(NamedTuple):
    """A rank's images (n, c, h, w) and labels (n,), and the gang's mean loss on the global batch they are part of."""

    images: Tensor
    labels: Tensor
    loss: float


class Gradient(nn.Cell):
    """Forward and backward over a local batch: (images, labels, tail) -> the flat buffer, gradients by the probes.

    The loss is multiplied by `loss_scale` for the backward pass, what is in the buffer divided by it again. Gradients
    by `probes`, parameters that nothing reads, are whatever the network's taps make of them; they stay scaled.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss: Callable[..., Any],
        parameters: Sequence[Parameter],
        loss_scale: float | Parameter = 1.0,
        probes: Sequence[Parameter] = (),
        buckets: Buckets | None = None,
    ) -> None:
        """A loss scale that is a parameter may change from step to step; `buckets` make the buffer the ranks' sum."""
        super().__init__()
        self.varies = isinstance(loss_scale, Parameter)
        self.network = network
        self.loss = loss
        self.loss_scale = loss_scale
        self.buckets = buckets
        self.count = len(parameters)
        self.gradient = ops.value_and_grad(self.forward, None, ParameterTuple([*parameters, *probes]), has_aux=True)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Mean loss of the local batch, scaled, and the logits; with a scale that varies also the loss itself."""
        logits = self.network(images)
        loss = self.loss(logits, labels)
        if self.varies:
            return loss * self.loss_scale, logits, loss
        return loss if self.loss_scale == 1 else loss * self.loss_scale, logits

    def construct(self, images: Tensor, labels: Tensor, tail: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Shapes: images (n, c, h, w), labels (n,) or shares (n, K), tail (t,) -> (parameters + 2 + t,), one tensor per
        probe.
        """
        if self.varies:
            (_, logits, loss), gradients = self.gradient(images, labels)
        else:
            (loss, logits), gradients = self.gradient(images, labels)
        labels = labels.argmax(1).astype(mindspore.int32) if labels.ndim == 2 else labels  # mixed: the largest share
        correct = ops.equal(logits.argmax(1).astype(labels.dtype), labels).astype(loss.dtype).mean()
        pieces = [gradient.reshape(-1) for gradient in gradients[: self.count]]
        if self.buckets is not None:
            loss = loss if self.varies else loss / self.loss_scale
            scalars = ops.concat([loss.reshape(1), correct.reshape(1), tail])
            return self.buckets(pieces, scalars), gradients[self.count :]
        if self.varies:  # the loss itself was never scaled: should it not be finite, no scale helps
            unscaled = ops.concat([ops.concat(pieces) / self.loss_scale, loss.reshape(1)])
            return ops.concat([unscaled, correct.reshape(1), tail]), gradients[self.count :]
        scaled = ops.concat([*pieces, loss.reshape(1)])
        unscaled = scaled if self.loss_scale == 1 else scaled / self.loss_scale
        return ops.concat([unscaled, correct.reshape(1), tail]), gradients[self.count :]


class Reduction(nn.Cell):
    """Mean over the ranks: flat buffer -> (mean gradients, [squared gradient norm, loss, accuracy, summed tail ...]).

    The squared norm doubles as the finite check: one infinite or undefined gradient makes it so.
    """

    def __init__(self, parameters: Sequence[Parameter], world_size: int, summed: bool = False) -> None:
        """`summed`: the buffer is the ranks' sum already."""
        super().__init__()
        self.count = sum(math.prod(parameter.shape) for parameter in parameters)
        self.scale = 1.0 / world_size
        self.reduce = ops.AllReduce() if world_size > 1 and not summed else None

    def construct(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Shape (parameters + 2 + t,) -> (parameters,), (3 + t,)."""
        if self.reduce is not None:
            flat = self.reduce(flat)
        mean = flat[: self.count + 2] * self.scale
        gradients = mean[: self.count]
        norm = ops.square(gradients).sum().reshape(1)
        return gradients, ops.concat([norm, mean[self.count :], flat[self.count + 2 :]])
