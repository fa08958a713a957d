"""Maps parameter names to PyTorch's: ours equal torchvision's and timm's, except BN's, which are MindSpore's."""

from collections.abc import Iterable

BATCH_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def torch(name: str) -> str:
    """Return PyTorch's name of one of our parameters."""
    path, _, last = name.rpartition(".")
    return f"{path}.{BATCH_NORM[last]}" if last in BATCH_NORM else name


def counters(names: Iterable[str], counter: str) -> list[str]:
    """Return the names of the counters that PyTorch keeps for the BN layers of these parameters."""
    return [f"{name.removesuffix('moving_mean')}{counter}" for name in names if name.endswith(".moving_mean")]
