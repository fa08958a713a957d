"""Reference for training in a principal subspace, in float64, on functions of a plain vector of weights.

Li et al. 2022 (arXiv 2103.11154), algorithm 1 (P-BFGS) and P-SGD. With f a batch's loss, g its gradient, P (k, M):

    g_k = P g,   r = g - P^T g_k
    P-BFGS  B <- V^T B V + s s^T / q,   y = g_k - g_k of the last accepted step s,  q = y^T s > 0,  V = I - y s^T / q
            d = -B g_k,   m the least with f(w + rho^m P^T d) < f(w) + sigma rho^m g_k^T d,   s = rho^m d
    P-SGD   u <- mu u + g_k,   s = -lr u   (Nesterov's: s = -lr (g_k + mu u))
    v <- gamma v + r,   w <- w + P^T s - alpha v
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Function(NamedTuple):
    """A loss of weights and its gradient."""

    loss: Callable[[Array], float]
    gradient: Callable[[Array], Array]


class Settings(NamedTuple):
    rho: float = 0.55
    sigma: float = 0.4
    most: int = 20
    gamma: float = 0.9
    alpha: float = 0.001


class Taken(NamedTuple):
    """A step: its length, the number of loss evaluations, and the share of the squared gradient in the subspace.

    `margins`: for each evaluation, how far the loss was below the required value, relative to the loss.
    """

    length: float
    evaluations: int
    share: float
    margins: tuple[float, ...] = ()


class Subspace:
    """Weights and the residual's momentum, which both methods have."""

    def __init__(self, weights: Array, basis: Array, settings: Settings) -> None:
        self.weights, self.basis, self.settings = weights.copy(), basis, settings
        self.residual = np.zeros_like(weights)

    def move(self, gradient: Array, step: Array) -> float:
        """Apply a step; returns the share of the squared gradient in the subspace."""
        within = self.basis @ gradient
        self.residual = self.settings.gamma * self.residual + gradient - self.basis.T @ within
        self.weights = self.weights + self.basis.T @ step - self.settings.alpha * self.residual
        return float(within @ within / (gradient @ gradient))


class Bfgs(Subspace):
    """P-BFGS."""

    def __init__(self, weights: Array, basis: Array, settings: Settings) -> None:
        super().__init__(weights, basis, settings)
        self.inverse = np.eye(len(basis))
        self.last: tuple[Array, Array] | None = None

    def step(self, f: Function) -> Taken:
        gradient, loss, rule = f.gradient(self.weights), f.loss(self.weights), self.settings
        within = self.basis @ gradient
        inverse = self._updated(within)
        direction = -inverse @ within
        slope = float(within @ direction)
        margins: list[float] = []
        for m in range(rule.most):
            length = rule.rho**m
            wanted = loss + rule.sigma * length * slope
            margins.append((wanted - f.loss(self.weights + length * self.basis.T @ direction)) / loss)
            if margins[-1] > 0:
                self.inverse, self.last = inverse, (length * direction, within)
                break
        else:
            length = 0.0
        return Taken(length, len(margins), self.move(gradient, length * direction), tuple(margins))

    def _updated(self, within: Array) -> Array:
        if self.last is None:
            return self.inverse
        s, y = self.last[0], within - self.last[1]
        q = float(y @ s)
        if q <= 0:
            return self.inverse
        v = np.eye(len(s)) - np.outer(y, s) / q
        updated: Array = v.T @ self.inverse @ v + np.outer(s, s) / q
        return updated


class Sgd(Subspace):
    """P-SGD."""

    def __init__(self, weights: Array, basis: Array, settings: Settings, momentum: float, nesterov: bool) -> None:
        super().__init__(weights, basis, settings)
        self.momentum, self.nesterov = momentum, nesterov
        self.velocity = np.zeros(len(basis))

    def step(self, f: Function, rate: float) -> Taken:
        gradient = f.gradient(self.weights)
        within = self.basis @ gradient
        self.velocity = self.momentum * self.velocity + within
        towards = within + self.momentum * self.velocity if self.nesterov else self.velocity
        return Taken(1.0, 0, self.move(gradient, -rate * towards))


class Network:
    """A network with one hidden layer of tanh, cross-entropy of its logits, and decay of its two matrices.

    Weights in order: the hidden layer's matrix (hidden, inputs) and bias, the last one's (classes, hidden) and bias.
    """

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        self.shapes = [(hidden, inputs), (hidden,), (classes, hidden), (classes,)]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]

    def parts(self, weights: Array) -> list[Array]:
        pieces = np.split(weights, np.cumsum(self.sizes)[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def objective(self, images: Array, labels: NDArray[np.int32], decay: float) -> Function:
        """Loss on a batch of all ranks; images are rows."""
        decayed = np.repeat([decay if len(shape) > 1 else 0.0 for shape in self.shapes], self.sizes)
        hits = np.eye(self.shapes[-1][0])[labels]

        def forward(weights: Array) -> tuple[Array, Array]:
            first, first_bias, last, last_bias = self.parts(weights)
            hidden = np.tanh(images @ first.T + first_bias)
            logits = hidden @ last.T + last_bias
            shifted = logits - logits.max(1, keepdims=True)
            return hidden, shifted - np.log(np.exp(shifted).sum(1, keepdims=True))

        def loss(weights: Array) -> float:
            return float(-(forward(weights)[1] * hits).sum() / len(images) + 0.5 * decayed @ weights**2)

        def gradient(weights: Array) -> Array:
            hidden, logarithms = forward(weights)
            outer = (np.exp(logarithms) - hits) / len(images)
            inner = (outer @ self.parts(weights)[2]) * (1 - hidden**2)
            pieces = (inner.T @ images, inner.sum(0), outer.T @ hidden, outer.sum(0))
            whole: Array = np.concatenate([piece.reshape(-1) for piece in pieces]) + decayed * weights
            return whole

        return Function(loss, gradient)


def orthonormal(dimensions: int, numbers: int, seed: int = 0) -> Array:
    """Random orthonormal components (k, M)."""
    rows: Array = np.linalg.qr(np.random.default_rng(seed).standard_normal((numbers, dimensions)))[0].T.copy()
    return rows
