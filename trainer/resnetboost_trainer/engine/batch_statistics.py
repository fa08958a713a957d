"""Checks that batch normalisation has something to normalise: of a single number there is no variance.

Without the check our operators would take it for 0, and MindSpore's would give a running variance that is no number.
PyTorch refuses such a batch too.
"""

from resnetboost_trainer.config import Config
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch


def check(settings: Config, height: int, width: int, ranks: int) -> None:
    """Raise ConfigError if a layer that learns has one number per channel, for images of that size on so many ranks."""
    images = settings.local_batch_size * (ranks if settings.sync_batch_norm else 1)
    name = settings.model.name
    parts = [part for part, size in arch.maps(name, height, width).items() if images * size[0] * size[1] == 1]
    learning = [part for part in parts if part not in settings.model.freeze]
    if learning:
        reason = f"1 image of {height} x {width} pixels is 1 x 1 in {learning[0]} of {name}, too little for batch"
        raise ConfigError(f"localBatchSize: {reason} normalisation; use at least 2, or larger images")
