"""Matches a state dict to a network: matched, missing, unexpected and mismatched names, and a message about them."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused, shown
from resnetboost_trainer.checkpoint.formats.weights import Layout
from resnetboost_trainer.models import arch, key_map
from resnetboost_trainer.models.arch import HEAD

Array = NDArray[Any]

# Names listed per kind of mismatch in a message; a file of another network has hundreds.
MAX_LISTED = 3


class Network(msgspec.Struct, frozen=True):
    """A ResNet by name, with its number of classes and of input channels."""

    name: str
    classes: int
    channels: int

    def __str__(self) -> str:
        plural = "s" if self.channels != 1 else ""
        return f"{self.name} with {self.classes} classes for images of {self.channels} channel{plural}"


class Fit(msgspec.Struct, frozen=True):
    """Result of matching a file to a network: parameter names as the file has them; `mismatched` adds both shapes."""

    network: Network
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """True if every name and shape matches."""
        return not (self.missing or self.unexpected or self.mismatched)

    @property
    def faults(self) -> int:
        """Number of names that do not match."""
        return len(self.missing) + len(self.unexpected) + len(self.mismatched)

    def describe(self) -> str:
        """Describe the mismatches in a clause of an error message."""
        kinds = {"another shape": self.mismatched, "missing": self.missing, "unexpected": self.unexpected}
        return "; ".join(f"{len(names)} {kind}: {_list(names)}" for kind, names in kinds.items() if names)


def fit(arrays: Mapping[str, Array], layout: Layout, network: Network, head: bool = True) -> Fit:
    """Match the arrays of a file to a network; with `head` False, ignore the dense layer."""
    expected = {_named(name, layout): shape for name, shape in _expected(network, head).items()}
    given = {name: tuple(array.shape) for name, array in arrays.items() if head or not name.startswith(f"{HEAD}.")}
    both = [name for name in expected if name in given]
    return Fit(
        network=network,
        matched=tuple(name for name in both if given[name] == expected[name]),
        missing=tuple(name for name in expected if name not in given),
        unexpected=tuple(name for name in given if name not in expected),
        mismatched=tuple(
            f"{name} {given[name]} instead of {expected[name]}" for name in both if given[name] != expected[name]
        ),
    )


def identify(arrays: Mapping[str, Array], layout: Layout, names: tuple[str, ...] = ()) -> Fit:
    """Return the match with the fewest faults among the networks in `names` (default: all ResNets)."""
    first = "conv1.weight" if "conv1.weight" in arrays else "conv1.0.weight"
    classes, channels = _size(arrays, f"{HEAD}.weight", 0), _size(arrays, first, 1)
    names = names or (*arch.LARGE, *arch.SMALL)
    return min((fit(arrays, layout, Network(name, classes, channels)) for name in names), key=lambda fit: fit.faults)


def renamed(arrays: Mapping[str, Array], layout: Layout, network: Network, head: bool = True) -> dict[str, Array]:
    """Return the arrays of a complete match under our names, in the network's order.

    Raises Refused for values that are not finite and for negative variances.
    """
    ours = {name: arrays[_named(name, layout)] for name in _expected(network, head)}
    for name, array in ours.items():
        if not np.isfinite(array).all():
            raise Refused(f"{_named(name, layout)} holds a value that is not finite")
        if name.endswith("moving_variance") and (array < 0).any():
            raise Refused(f"{_named(name, layout)} holds a negative variance")
    return ours


def _expected(network: Network, head: bool) -> arch.Shapes:
    everything = arch.parameters(network.name, network.classes, network.channels)
    return {name: shape for name, shape in everything.items() if head or arch.part(name) != "head"}


def _named(name: str, layout: Layout) -> str:
    return key_map.torch(name) if layout == "torch" else name


def _size(arrays: Mapping[str, Array], name: str, axis: int) -> int:
    """Return the named array's length along `axis`, or 1 if the array or the axis is missing."""
    array = arrays.get(name)
    return int(array.shape[axis]) if array is not None and array.ndim > axis else 1


def _list(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(shown(name) for name in names[:MAX_LISTED]) + more
