"""The compiled graph of a step's gradient: forward and backward pass over a local batch.

Gradient, reduction (`distributed.reduction`) and update (`optim`) are separate graphs, so that compute time and
collective time can be measured separately; a flat buffer connects them. With buckets the all-reduces are part of the
gradient's graph, which then returns the buffer summed over the ranks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.distributed.buckets import Buckets
from resnetboost_trainer.optim.norms import squared_norm


class Gradient(nn.Cell):
    """Forward and backward over a local batch: (images, labels, tail) -> the flat buffer, gradients by the probes.

    The loss is multiplied by `loss_scale` for the backward pass, and the buffer is divided by it again. `probes` are
    parameters that nothing reads; the network's taps define their gradients, which stay scaled.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss: Callable[..., Any],
        parameters: Sequence[Parameter],
        loss_scale: float | Parameter = 1.0,
        probes: Sequence[Parameter] = (),
        buckets: Buckets | None = None,
        norm: bool = False,
    ) -> None:
        """If the loss scale is a Parameter, it may change between steps. `buckets` sum the buffer over the ranks.

        `norm`: the squared norm of the gradient, unscaled, comes after the tail; not with buckets.
        """
        super().__init__()
        self.varies = isinstance(loss_scale, Parameter)
        self.network = network
        self.loss = loss
        self.loss_scale = loss_scale
        self.buckets = buckets
        self.count = len(parameters)
        self.norm, self.size = norm, sum(math.prod(parameter.shape) for parameter in parameters)
        self.gradient = ops.value_and_grad(self.forward, None, ParameterTuple([*parameters, *probes]), has_aux=True)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the local batch's scaled mean loss and logits; with a varying scale also the unscaled loss."""
        logits = self.network(images)
        loss = self.loss(logits, labels)
        if self.varies:
            return loss * self.loss_scale, logits, loss
        return loss if self.loss_scale == 1 else loss * self.loss_scale, logits

    def construct(self, images: Tensor, labels: Tensor, tail: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Shapes: images (n, c, h, w), labels (n,) or shares (n, K) or with a teacher's logits (n, 2 K), tail (t,) ->
        (parameters + 2 + t,), one tensor per probe; with the norm one number more.
        """
        if self.varies:
            (_, logits, loss), gradients = self.gradient(images, labels)
        else:
            (loss, logits), gradients = self.gradient(images, labels)
        if labels.ndim == 2:  # the class of the largest share; a teacher's logits may follow the shares
            shares = labels if labels.shape[1] == logits.shape[1] else labels[:, : logits.shape[1]]
            labels = shares.argmax(1).astype(mindspore.int32)
        correct = ops.equal(logits.argmax(1).astype(labels.dtype), labels).astype(loss.dtype).mean()
        pieces = [gradient.reshape(-1) for gradient in gradients[: self.count]]
        if self.buckets is not None:
            loss = loss if self.varies else loss / self.loss_scale
            scalars = ops.concat([loss.reshape(1), correct.reshape(1), tail])
            return self.buckets(pieces, scalars), gradients[self.count :]
        if self.varies:  # the unscaled loss: if it is not finite, no scale helps
            unscaled = ops.concat([ops.concat(pieces) / self.loss_scale, loss.reshape(1)])
            return self.buffer(unscaled, correct, tail), gradients[self.count :]
        scaled = ops.concat([*pieces, loss.reshape(1)])
        unscaled = scaled if self.loss_scale == 1 else scaled / self.loss_scale
        return self.buffer(unscaled, correct, tail), gradients[self.count :]

    def buffer(self, unscaled: Tensor, correct: Tensor, tail: Tensor) -> Tensor:
        """Gradients and loss (parameters + 1,), what comes after them -> the flat buffer."""
        if self.norm:
            return ops.concat([unscaled, correct.reshape(1), tail, squared_norm(unscaled[: self.size]).reshape(1)])
        return ops.concat([unscaled, correct.reshape(1), tail])
