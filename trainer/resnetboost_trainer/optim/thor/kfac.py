"""THOR's K-FAC preconditioner and its update: traces, decisions, factors, inverses.

Traces and factors are averaged over the ranks, inverses never (the mean of inverses is not the inverse of the mean: it
makes steps too long); each block is inverted by one rank, which shares the inverse. Every rank decides from the same
bits, so all enter the same collectives.
"""

import itertools
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.config import Thor
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models.assign import Part, Writer, write
from resnetboost_trainer.optim.thor import device, exchange, host, inverse, layers, trace_rule
from resnetboost_trainer.optim.thor.capture import Capture
from resnetboost_trainer.optim.thor.exchange import Damped
from resnetboost_trainer.optim.thor.host import Captured
from resnetboost_trainer.optim.thor.native import Native
from resnetboost_trainer.optim.thor.observed import Observed
from resnetboost_trainer.optim.thor.precondition import Preconditioned, Preconditioner
from resnetboost_trainer.optim.thor.report import CurvatureUpdate
from resnetboost_trainer.optim.thor.trace_rule import Decision

Floats = NDArray[np.float32]

UNEXPLAINED = (
    "the network uses it never or more than once in a step, uses its weight elsewhere, or not for every sample"
)

log = logging.getLogger(__name__)


class Due(NamedTuple):
    """A layer due for an update: its index, captured tensors, and T, the same on every rank."""

    place: int
    captured: Captured
    positions: float


class _Statistics(Protocol):
    """Interface of `Native` and of the modules `host` and `device`."""

    def all_traces(self, everything: Sequence[Captured]) -> list[tuple[float, float]]: ...

    def all_factors(self, everything: Sequence[Captured]) -> list[list[Floats]]: ...


class KFACPreconditioner:
    """Maintains the inverse factors of a network's layers in `preconditioner`, the same bits on every rank."""

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
        self.on_host = mindspore.get_context("device_target") == "CPU"
        self.statistics = _statistics(self.on_host)
        self.layers, left_out = layers.find(network, settings.block_size, exclude)
        if not self.layers:
            known = "Conv2d, Dense, Embedding or LayerNorm with trained weights"
            raise ValueError(f"THOR found no layer it knows inside of the network: {known}")
        for name, reason in left_out.items():
            log.warning("THOR leaves %s its plain gradient: %s", name, reason)
        self.parameters = layers.ordered(self.layers, parameters)
        self.capture = Capture(network, self.layers)
        self.preconditioner = Preconditioner(self.layers, self.parameters)
        first = Tensor(trace_rule.first_state(len(self.layers)))
        self.traces = Parameter(first, name="thor.traces", requires_grad=False)
        self.overdue = Parameter(Tensor(0.0, mindspore.float32), name="thor.overdue", requires_grad=False)
        self._overdue: bool | None = None
        self._earlier: Observed | None = None  # of this step's virtual ranks before the last one
        unknown = Tensor(np.zeros(len(self.layers), np.float32))
        self.dampings = Parameter(unknown, name="thor.damping", requires_grad=False)
        parts = 2 + sum(len(layer.form.factors) for layer in self.layers)
        self.writer = Writer([self.traces, self.dampings, *self.preconditioner.state()], most=parts)

    def optimizer(self, optimizer: nn.Cell) -> Preconditioned:
        """Wrap an optimizer of flat gradients so that it gets preconditioned ones."""
        return Preconditioned(self.preconditioner, optimizer, self.settings.clip_norm)

    def state(self) -> list[Parameter]:
        """Return the state to save in checkpoints."""
        return [self.traces, *self.preconditioner.state()]

    def optional_state(self) -> list[Parameter]:
        """Return state that checkpoints of older releases lack; a damping of 0 counts as outdated."""
        return [self.dampings, self.overdue]

    def due(self, step: int) -> bool:
        """Return whether a step (0-based) updates the curvature, so that its graph must capture tensors.

        True every `frequency` steps and after a postponed update. Stopped layers are included, since they need an
        update when the damping has changed; the ranks decide that together in `update`.
        """
        if step % self.settings.frequency != 0 and not self._is_overdue():
            return False
        left_out = self.traces.asnumpy()[:, trace_rule.STOPPED] == trace_rule.LEFT_OUT
        return not bool(left_out.all())

    def postpone(self) -> None:
        """Postpone an update to the next step, since its own step is skipped."""
        self._earlier = None
        self._set_overdue(True)

    def forget(self) -> None:
        """Read the parameters again at the next step: other values may have been loaded."""
        self._overdue = self._earlier = None

    def _is_overdue(self) -> bool:
        """Return the parameter's value, cached, since reading it waits for the device."""
        if self._overdue is None:
            self._overdue = bool(self.overdue.asnumpy() > 0)
        return self._overdue

    def _set_overdue(self, yes: bool) -> None:
        if self._is_overdue() != yes:
            write(self.overdue, np.asarray(float(yes)))
            self._overdue = yes

    def observe(self, captured: Sequence[Tensor], gradients: Tensor, samples: int, loss_scale: float) -> None:
        """Add what a virtual rank of this rank has captured before the last one's, which `update` takes. No collective.

        Arguments as for `update`. The factors of all layers are computed, since which are due is not known yet.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is left out, and this sum with it
            new = self._observed(self._captured(captured, samples, loss_scale), gradients)
            self._earlier = new if self._earlier is None else self._earlier.plus(new)

    def _observed(self, everything: Sequence[Captured], gradients: Tensor) -> Observed:
        state: Floats = self.traces.asnumpy()
        unexplained = np.zeros(len(state), np.float32)
        if not state.any():
            unexplained = self._unexplained(everything, gradients)
        watched = (state[:, trace_rule.STOPPED] != trace_rule.LEFT_OUT) & (unexplained == 0)
        places = np.flatnonzero(watched).tolist()
        factors = self.statistics.all_factors([everything[k] for k in places])
        of_layers = dict(zip(places, factors, strict=True))
        return Observed(1, unexplained, self._own_traces(watched, everything), of_layers)

    def update(
        self, captured: Sequence[Tensor], gradients: Tensor, samples: int, loss_scale: float, damping: float
    ) -> CurvatureUpdate:
        """Update the inverses by this virtual rank and those that `observe` has seen.

        A collective, except in a gang of one.

        `captured` are the probes' gradients for a local batch of `samples` and a loss times `loss_scale`; `gradients`
        is this rank's own flat gradient, unscaled, used on the first call only.
        """
        started = time.perf_counter()
        earlier, self._earlier = self._earlier, None
        everything = self._captured(captured, samples, loss_scale)
        state: Floats = self.traces.asnumpy()
        if not state.any():
            state = self._without_unexplained(state, self._unexplained(everything, gradients), earlier)
        positions, traces, agreed = self._traces(state, everything, damping, earlier)
        dampings: Floats = self.dampings.asnumpy().copy()
        outdated = trace_rule.outdated(dampings, agreed)
        state, decisions = trace_rule.decide(state, traces, self.settings.trace_rule, outdated)
        due = [
            Due(k, everything[k], float(positions[k]))
            for k, decision in enumerate(decisions)
            if decision is Decision.UPDATE
        ]
        inverses = self._renewed(due, damping, earlier) if due else {}
        failed = {one.place for one in due} - inverses.keys()
        renewed = np.isin(np.arange(len(state)), [one.place for one in due if one.place not in failed])
        dampings[renewed] = agreed
        rule = Part(0, 0, trace_rule.updated(state, renewed)), Part(1, 0, dampings)
        self.writer.write([*rule, *self.preconditioner.parts(inverses, first=len(rule))])
        self._set_overdue(False)
        return CurvatureUpdate(
            damping=damping,
            seconds=time.perf_counter() - started,
            updated=len(due) - len(failed),
            kept=decisions.count(Decision.KEEP),
            stopped=decisions.count(Decision.STOP) - int((state[:, trace_rule.STOPPED] == trace_rule.LEFT_OUT).sum()),
            failed=len(failed),
        )

    def _captured(self, tensors: Sequence[Tensor], samples: int, loss_scale: float) -> list[Captured]:
        pairs = zip(self.layers, tensors[::2], tensors[1::2], strict=True)
        everything = [Captured(layer, a, d, samples, loss_scale) for layer, a, d in pairs]
        return [host.brought(captured) for captured in everything] if self.on_host else everything

    def _unexplained(self, everything: Sequence[Captured], gradients: Tensor) -> Floats:
        """Return 1 for each layer whose captured tensors do not explain its gradient, else 0."""
        sizes = np.cumsum([layer.form.size for layer in self.layers])
        parts = np.split(gradients.asnumpy()[: sizes[-1]], sizes[:-1])
        pairs = zip(everything, parts, strict=True)
        return np.array([not _explained(*pair) for pair in pairs], np.float32)

    def _without_unexplained(self, state: Floats, unexplained: Floats, earlier: Observed | None) -> Floats:
        """Exclude the layers that are unexplained on any virtual rank of the gang; return the state."""
        own = unexplained if earlier is None else unexplained + earlier.unexplained
        unsound = self.communicator.sum(own) > 0
        for layer in itertools.compress(self.layers, unsound):
            log.warning("THOR leaves %s its plain gradient: %s", layer.name, UNEXPLAINED)
        after = state.copy()
        after[unsound, trace_rule.STOPPED] = trace_rule.LEFT_OUT
        return after

    def _traces(
        self, state: Floats, everything: Sequence[Captured], damping: float, earlier: Observed | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return T and tr F by layer, 0 for excluded layers, and the damping, all averaged over the virtual ranks.

        T is averaged because ranks may pad sequences to different lengths. The damping is averaged because processors,
        or a script's own function, may round it differently, and the choice of collectives depends on it.
        """
        watched = state[:, trace_rule.STOPPED] != trace_rule.LEFT_OUT
        own = self._own_traces(watched, everything)
        if earlier is not None:
            own = np.where(watched[:, None], own + earlier.traces, np.float32(0)) / np.float32(earlier.count + 1)
        *flat, agreed = self.communicator.mean(np.append(own, np.float32(damping)))
        mean = np.array(flat, np.float64).reshape(-1, 3)
        groups = np.array([layer.form.groups for layer in self.layers])
        traces = trace_rule.kronecker_trace(mean[:, 2] / groups, mean[:, 0], mean[:, 1])
        return mean[:, 2], traces, float(agreed)

    def _own_traces(self, watched: NDArray[np.bool_], everything: Sequence[Captured]) -> Floats:
        """Return (tr A, tr G, T) by layer, 0 for those that are not watched."""
        own = np.zeros((len(watched), 3), np.float32)
        seen = list(itertools.compress(everything, watched))
        if seen:
            own[watched, :2] = self.statistics.all_traces(seen)
            own[watched, 2] = [captured.uses for captured in seen]
        return own

    def _renewed(self, due: Sequence[Due], damping: float, earlier: Observed | None) -> dict[int, list[Floats]]:
        """Return the new inverses by layer, without layers whose factors cannot be inverted, which keep theirs."""
        inverses = self._inverted(due, self._factors(due, earlier), damping)
        sound = {
            one.place: own
            for one, own in zip(due, inverses, strict=True)
            if all(np.isfinite(inverse).all() for inverse in own)
        }
        for place in sorted({one.place for one in due} - sound.keys()):
            log.warning("THOR: a factor of %s is not positive definite; it keeps its old ones", self.layers[place].name)
        return sound

    def _factors(self, due: Sequence[Due], earlier: Observed | None) -> list[list[Floats]]:
        """Return the layers' factors for the global batch, averaged in one collective."""
        own = self.statistics.all_factors([one.captured for one in due])
        if earlier is not None:
            own = [_mean(parts, earlier.factors[one.place], earlier.count) for one, parts in zip(due, own, strict=True)]
        if self.communicator.size == 1:
            return own
        return _split(
            self.communicator.mean(np.concatenate([part.reshape(-1) for parts in own for part in parts])), own
        )

    def _inverted(self, due: Sequence[Due], factors: Sequence[list[Floats]], damping: float) -> list[list[Floats]]:
        """Return all inverses, with the factor 1 / T of F ~ T (A kron G) included in those of G."""
        damped = [
            Damped(blocks, added)
            for one, own in zip(due, factors, strict=True)
            for blocks, added in zip(own, self._dampings(one, own, damping), strict=True)
        ]
        results = iter(exchange.inverted(damped, self.communicator))
        inverses = [[next(results) for _ in own] for own in factors]
        for one, own in zip(due, inverses, strict=True):
            own[-1] /= np.float32(one.positions)
        return inverses

    def _dampings(self, one: Due, factors: Sequence[Floats], damping: float) -> tuple[float, ...]:
        """Return the damping of each factor's diagonal; all groups of a convolution share one pi."""
        if len(factors) == 1:
            return (damping,)
        ratio = 1.0
        if self.settings.damping.split == "Pi":
            form = self.layers[one.place].form
            trace_a, trace_g = (float(np.trace(blocks, axis1=1, axis2=2).sum()) for blocks in factors)
            dim_a, dim_g = (form.groups * cut.dimension for cut in form.factors)
            ratio = inverse.pi(trace_a, dim_a, trace_g, dim_g)
        return inverse.damping_shares(damping, one.positions, ratio)


def _statistics(on_host: bool) -> _Statistics:
    operators = library.usable() if on_host else None
    if operators is not None:
        return Native(operators)
    return host if on_host else device


def _explained(captured: Captured, gradient: Floats) -> bool:
    return host.explains(host.brought(captured) if isinstance(captured.input, Tensor) else captured, gradient)


def _mean(last: Sequence[Floats], sums: Sequence[Floats], count: int) -> list[Floats]:
    """Return the mean of a virtual rank's factors and those of `count` others, which are given as sums."""
    return [(total + part) / np.float32(count + 1) for total, part in zip(sums, last, strict=True)]


def _split(flat: Floats, like: Sequence[list[Floats]]) -> list[list[Floats]]:
    """Split a flat array into arrays with the shapes of `like`."""
    result, start = [], 0
    for arrays in like:
        shaped = []
        for array in arrays:
            shaped.append(flat[start : start + array.size].reshape(array.shape))
            start += array.size
        result.append(shaped)
    return result
