"""Momentum SGD in two graphs, for what happens between them: the change that a node would make, and making it."""

from mindspore import Tensor, nn, ops

from resnetboost_trainer.optim.momentum import Momentum


class Change(Momentum):
    """Momentum that returns what it would take from the weights, flat, and leaves them alone; velocity goes on."""

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """Shape (parameters,) -> (parameters,)."""
        parts = ops.split(gradients, self.sizes)
        changes = []
        for k in range(len(self.sizes)):
            changes.append((learning_rate * self.direction(k, parts[k])).reshape(-1))
        return ops.concat(changes)


class Apply(nn.Cell):
    """Takes a flat change from the weights."""

    def __init__(self, momentum: Momentum) -> None:
        super().__init__(auto_prefix=False)
        self.parameters, self.shapes, self.sizes = momentum.parameters, momentum.shapes, momentum.sizes
        self.subtract = ops.AssignSub()

    def construct(self, change: Tensor) -> Tensor:
        """Shape (parameters,)."""
        parts = ops.split(change, self.sizes)
        for k in range(len(self.sizes)):
            self.subtract(self.parameters[k], parts[k].reshape(self.shapes[k]))
        return change
