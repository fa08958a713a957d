"""An update of the curvature, top to bottom: traces, decision, factors, inverses; each in a module of its own.

Across ranks: traces and factors are averaged, never inverses (the mean of inverses is not the inverse of the mean: it
makes steps too long), each block is inverted once in the whole gang and its inverse shared. Every rank decides from
the same bits, so all enter the same collectives.
"""

import itertools
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import mindspore
import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.config import Thor
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.optimizers.thor import device, exchange, host, inverse, layers, trace
from resnetboost_trainer.optimizers.thor.capture import Capture
from resnetboost_trainer.optimizers.thor.exchange import Damped
from resnetboost_trainer.optimizers.thor.host import Captured
from resnetboost_trainer.optimizers.thor.precondition import Preconditioned, Preconditioner
from resnetboost_trainer.optimizers.thor.trace import Decision

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


class Update(msgspec.Struct, frozen=True):
    """What a candidate update did, in numbers of layers. `failed` ones were due and keep their old inverses."""

    damping: float
    seconds: float
    updated: int
    kept: int
    stopped: int
    failed: int


class _Statistics(Protocol):
    """`host` or `device`."""

    def all_traces(self, everything: Sequence[Captured]) -> list[tuple[float, float]]: ...

    def factors(self, captured: Captured) -> list[Floats]: ...


class Curvature:
    """The factors of a network's layers, kept as inverses in `preconditioner`, the same bits on every rank."""

    def __init__(
        self,
        network: nn.Cell,
        parameters: Sequence[Parameter],
        settings: Thor,
        communicator: Communicator,
        exclude: Sequence[str] = (),
    ) -> None:
        """`exclude` names layers that keep their plain gradient. Raises ValueError when none is left."""
        self.settings, self.communicator = settings, communicator
        self.statistics: _Statistics = host if mindspore.get_context("device_target") == "CPU" else device
        self.layers, left_out = layers.find(network, settings.block_size, exclude)
        if not self.layers:
            known = "Conv2d, Dense, Embedding or LayerNorm with trained weights"
            raise ValueError(f"THOR found no layer it knows inside of the network: {known}")
        for name, reason in left_out.items():
            log.warning("THOR leaves %s its plain gradient: %s", name, reason)
        self.parameters = layers.ordered(self.layers, parameters)
        self.capture = Capture(network, self.layers)
        self.preconditioner = Preconditioner(self.layers, self.parameters)
        first = Tensor(trace.first_state(len(self.layers)))
        self.traces = Parameter(first, name="thor.traces", requires_grad=False)

    def optimizer(self, optimizer: nn.Cell) -> Preconditioned:
        """That optimizer of flat gradients, given the preconditioned ones."""
        return Preconditioned(self.preconditioner, optimizer, self.settings.clip_norm)

    def state(self) -> list[Parameter]:
        """What a checkpoint has to hold."""
        return [self.traces, *self.preconditioner.state()]

    def due(self, step: int) -> bool:
        """Whether that step, 0-based, is a candidate for an update: its graph has to capture."""
        return step % self.settings.frequency == 0

    def update(
        self, captured: Sequence[Tensor], gradients: Tensor, samples: int, loss_scale: float, damping: float
    ) -> Update:
        """Bring the inverses up to date. A collective, but for a gang of one.

        `captured` is what the probes' gradients were, of a local batch of `samples` and a loss times `loss_scale`;
        `gradients` this rank's own flat gradient, unscaled, which is looked at on the first call alone.
        """
        started = time.perf_counter()
        everything = self._captured(captured, samples, loss_scale)
        state: Floats = self.traces.asnumpy()
        if not state.any():
            state = self._without_unexplained(state, everything, gradients)
        state, decisions = trace.decide(state, self._traces(state, everything, damping), self.settings.trace_rule)
        due = [k for k, decision in enumerate(decisions) if decision is Decision.UPDATE]
        failed = self._renew(due, [everything[k] for k in due], damping) if due else set()
        renewed = np.isin(np.arange(len(state)), [k for k in due if k not in failed])
        self.traces.set_data(Tensor(trace.updated(state, renewed)))
        return Update(
            damping=damping,
            seconds=time.perf_counter() - started,
            updated=len(due) - len(failed),
            kept=decisions.count(Decision.KEEP),
            stopped=decisions.count(Decision.STOP),
            failed=len(failed),
        )

    def _captured(self, tensors: Sequence[Tensor], samples: int, loss_scale: float) -> list[Captured]:
        pairs = zip(self.layers, tensors[::2], tensors[1::2], strict=True)
        everything = [Captured(layer, a, d, samples, loss_scale) for layer, a, d in pairs]
        return [host.brought(captured) for captured in everything] if self.statistics is host else everything

    def _without_unexplained(self, state: Floats, everything: Sequence[Captured], gradients: Tensor) -> Floats:
        """The state with those layers stopped, on every rank, whose captured tensors are not their whole story."""
        sizes = np.cumsum([layer.form.size for layer in self.layers])
        parts = np.split(gradients.asnumpy()[: sizes[-1]], sizes[:-1])
        local = everything if self.statistics is host else [host.brought(captured) for captured in everything]
        sound = [host.explains(captured, part) for captured, part in zip(local, parts, strict=True)]
        unsound = self.communicator.sum(np.array([not each for each in sound], np.float32)) > 0
        for layer in itertools.compress(self.layers, unsound):
            log.warning("THOR leaves %s its plain gradient: the network does not use it once a sample", layer.name)
        after = state.copy()
        after[unsound, trace.STOPPED] = 1
        return after

    def _traces(self, state: Floats, everything: Sequence[Captured], damping: float) -> NDArray[np.float64]:
        """tr(F + damping I) by layer, of the gang's whole batch; 0 for those that are stopped."""
        live = state[:, trace.STOPPED] == 0
        seen = list(itertools.compress(everything, live))
        own = np.zeros((len(state), 2), np.float32)
        own[live] = self.statistics.all_traces(seen) if seen else np.zeros((0, 2))
        both = self.communicator.mean(own.reshape(-1)).reshape(-1, 2).astype(np.float64)
        positions = np.zeros(len(state))
        positions[live] = [_positions(captured) / captured.layer.form.groups for captured in seen]
        weights = np.array([layer.form.size for layer in self.layers], np.float64)
        return trace.kronecker_trace(positions, both[:, 0], both[:, 1], damping, weights, np.ones_like(weights))

    def _renew(self, due: Sequence[int], everything: Sequence[Captured], damping: float) -> set[int]:
        """New inverses for those layers; returns those whose factors cannot be inverted, which keep what they have."""
        inverses = dict(zip(due, self._inverted(everything, self._factors(everything), damping), strict=True))
        failed = {k for k in due if not all(np.isfinite(each).all() for each in inverses[k])}
        for k in sorted(failed):
            log.warning("THOR: the factors of %s are not positive definite; it keeps its old ones", self.layers[k].name)
        self.preconditioner.set({k: inverses[k] for k in due if k not in failed})
        return failed

    def _factors(self, everything: Sequence[Captured]) -> list[list[Floats]]:
        """The layers' factors of the gang's whole batch: one collective for all of them."""
        own = [self.statistics.factors(captured) for captured in everything]
        flat = np.concatenate([blocks.reshape(-1) for layer in own for blocks in layer])
        return own if self.communicator.size == 1 else _split(self.communicator.mean(flat), own)

    def _inverted(
        self, everything: Sequence[Captured], factors: Sequence[list[Floats]], damping: float
    ) -> list[list[Floats]]:
        """All inverses, with the 1 / T of F ~ T (A kron G) in those of G."""
        damped = [
            Damped(blocks, added)
            for captured, own in zip(everything, factors, strict=True)
            for blocks, added in zip(own, self._dampings(captured, own, damping), strict=True)
        ]
        results = iter(exchange.inverted(damped, self.communicator))
        inverses = [[next(results) for _ in own] for own in factors]
        for captured, own_inverses in zip(everything, inverses, strict=True):
            own_inverses[-1] /= _positions(captured)
        return inverses

    def _dampings(self, captured: Captured, factors: Sequence[Floats], damping: float) -> tuple[float, ...]:
        """What is added to the diagonal of each factor."""
        if len(factors) == 1:
            return (damping,)
        ratio = 1.0
        if self.settings.damping.split == "Pi":
            form = captured.layer.form
            trace_a, trace_g = (float(np.trace(blocks, axis1=1, axis2=2).sum()) for blocks in factors)
            dim_a, dim_g = (form.groups * cut.dimension for cut in form.factors)
            ratio = inverse.pi(trace_a, dim_a, trace_g, dim_g)
        return inverse.damping_shares(damping, captured.positions, ratio)


def _positions(captured: Captured) -> int:
    """T of F ~ T (A kron G); LayerNorm's Fisher diagonal is whole already."""
    return 1 if captured.layer.form.kind == "norm" else captured.positions


def _split(flat: Floats, like: Sequence[list[Floats]]) -> list[list[Floats]]:
    """The numbers of a flat array in the shapes of those arrays."""
    result, start = [], 0
    for arrays in like:
        shaped = []
        for array in arrays:
            shaped.append(flat[start : start + array.size].reshape(array.shape))
            start += array.size
        result.append(shaped)
    return result
