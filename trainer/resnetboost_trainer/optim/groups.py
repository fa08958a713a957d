"""Parameter groups: factors of the learning rate and weight decays of parts of a network, by depth and by name."""

import fnmatch
import re
from collections.abc import Mapping, Sequence

import msgspec
from mindspore import Parameter, nn

from resnetboost_trainer.config import Config, ParameterGroup
from resnetboost_trainer.failures import ConfigError


class Group(msgspec.Struct, frozen=True):
    """What a parameter has of its own: a factor on the learning rate, and on occasion a weight decay."""

    rate: float = 1.0
    decay: float | None = None


Groups = Sequence[Group]


def of(config: Config, network: nn.Cell, parameters: Sequence[Parameter]) -> Groups:
    """The group of each parameter. Raises ConfigError for a pattern that matches none of them."""
    names = {id(parameter): name for name, parameter in network.parameters_and_names()}
    return named(config, [names[id(parameter)] for parameter in parameters])


def named(config: Config, names: Sequence[str]) -> Groups:
    """The group of each name: the first whose pattern matches it. Raises ConfigError for a pattern without a match."""
    for place, group in enumerate(config.parameter_groups):
        if not any(fnmatch.fnmatchcase(name, group.parameters) for name in names):
            remedy = f"names are those of model.safetensors, such as {names[0]} and {names[-1]}"
            field = f"parameterGroups[{place}].parameters"
            raise ConfigError(f"{field}: {group.parameters!r} matches none of the trained parameters; {remedy}")
    rates = _by_depth(names, 1.0 if config.layer_decay is None else config.layer_decay)
    return [_group(name, rates[name], config.parameter_groups) for name in names]


def decays(parameters: Sequence[Parameter], weight_decay: float, groups: Groups | None = None) -> list[float]:
    """The weight decay of each parameter: that of its group, or the usual one, which is for weight matrices alone.

    Decaying BN's scale and shift or biases costs accuracy (He et al. 2019, "Bag of Tricks", §3.1).
    """
    own = [None] * len(parameters) if groups is None else [group.decay for group in groups]
    usual = [weight_decay if is_matrix(parameter) else 0.0 for parameter in parameters]
    return [given if decay is None else decay for given, decay in zip(usual, own, strict=True)]


def rates(parameters: Sequence[Parameter], groups: Groups | None = None) -> list[float]:
    """The factor on the learning rate of each parameter."""
    return [1.0] * len(parameters) if groups is None else [group.rate for group in groups]


def is_matrix(parameter: Parameter) -> bool:
    """True for weights of convolutions and dense layers, which have two or more dimensions."""
    return len(parameter.shape) > 1


def _group(name: str, rate: float, given: Sequence[ParameterGroup]) -> Group:
    own = next((group for group in given if fnmatch.fnmatchcase(name, group.parameters)), None)
    return Group(rate) if own is None else Group(rate * own.learning_rate_factor, own.weight_decay)


def _by_depth(names: Sequence[str], decay: float) -> Mapping[str, float]:
    """1 for the head, and `decay` more often the further a block is from it: as timm's layer decay."""
    depths = {name: _place(name) for name in names}
    order = {place: depth for depth, place in enumerate(sorted(set(depths.values()), reverse=True))}
    return {name: decay ** order[place] for name, place in depths.items()}


def _place(name: str) -> tuple[int, int]:
    """Where a parameter is on the way from the images to the logits: by layer and block."""
    block = re.match(r"layer(\d+)\.(\d+)\.", name)
    if block is not None:
        return int(block[1]), int(block[2])
    return (0, 0) if name.startswith(("conv1.", "bn1.")) else (99, 0)
