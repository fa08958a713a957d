"""Chooses the transforms of a job's images, from its fields and the defaults of its data source."""

import msgspec

from resnetboost_trainer import config
from resnetboost_trainer.data.augmentation import ArrayAugmentation, Colour, ResizedCrop
from resnetboost_trainer.data.erasing import RandomErasing
from resnetboost_trainer.data.mixup import Mixing
from resnetboost_trainer.data.randaugment import RandAugment
from resnetboost_trainer.data.sources.source import Source
from resnetboost_trainer.data.transforms import Augmented, Evaluated
from resnetboost_trainer.failures import ConfigError

IMAGE_SIZE = 224


class Recipe(msgspec.Struct, frozen=True):
    """Image size, evaluation transform and augmentation of a job; None for what it does not use."""

    size: int
    evaluated: Evaluated
    augmented: Augmented
    arrays: ArrayAugmentation | None
    mixing: Mixing | None


def recipe(dataset: config.Dataset, classes: int, source: Source) -> Recipe:
    """Return the recipe of the job. Raises ConfigError for a crop that its data source does not support."""
    chosen = dataset.augmentation
    size = dataset.image_size or IMAGE_SIZE
    evaluated = Evaluated(size, dataset.evaluation_resize or size * 8 // 7)
    if evaluated.resize < size:
        raise ConfigError(
            f"dataset.evaluationResize: {evaluated.resize} is less than imageSize: {size}, which is cut out of it;"
            f" use {size} or more"
        )
    crop = _crop(dataset, source, chosen)
    flip = source.horizontal_flip if chosen.horizontal_flip is None else chosen.horizontal_flip
    resized = ResizedCrop(
        min_scale=chosen.min_scale,
        max_scale=chosen.max_scale,
        min_ratio=chosen.min_ratio,
        max_ratio=chosen.max_ratio,
    )
    random, erasing = _rand_augment(dataset, source), _erasing(chosen)
    augmented = Augmented(resized if crop == "RandomResized" else evaluated, flip, _colour(chosen), random, erasing)
    padding = chosen.padding if crop == "Padded" else 0
    changes = padding or flip or random is not None or erasing is not None
    arrays = ArrayAugmentation(padding, flip, random, erasing) if changes else None
    mixes = chosen.mixup_alpha or chosen.cutmix_alpha
    mixing = Mixing(chosen.mixup_alpha, chosen.cutmix_alpha, classes) if mixes else None
    return Recipe(size, evaluated, augmented, arrays, mixing)


def _rand_augment(dataset: config.Dataset, source: Source) -> RandAugment | None:
    chosen = dataset.augmentation.rand_augment
    if chosen is None:
        return None
    field = "dataset.augmentation.randAugment"
    if source.arrays is not None:
        raise ConfigError(f"{field}: it is for images of bytes, and those of {dataset.name} are numbers; leave it out")
    if chosen.magnitude >= chosen.num_bins:
        raise ConfigError(f"{field}.magnitude: {chosen.magnitude} must be below numBins: {chosen.num_bins}")
    return RandAugment(num_ops=chosen.num_ops, magnitude=chosen.magnitude, num_bins=chosen.num_bins)


def _erasing(chosen: config.Augmentation) -> RandomErasing | None:
    erasing = chosen.random_erasing
    if erasing is None or erasing.probability == 0:
        return None
    return RandomErasing(
        probability=erasing.probability,
        min_scale=erasing.min_scale,
        max_scale=erasing.max_scale,
        min_ratio=erasing.min_ratio,
        max_ratio=erasing.max_ratio,
        noise=erasing.fill == "Noise",
    )


def _colour(chosen: config.Augmentation) -> Colour | None:
    colour = Colour(
        brightness=chosen.brightness, contrast=chosen.contrast, saturation=chosen.saturation, hue=chosen.hue
    )
    return colour if any(msgspec.structs.astuple(colour)) else None


def _crop(dataset: config.Dataset, source: Source, chosen: config.Augmentation) -> str:
    crop = chosen.crop or source.crop
    wrong = "RandomResized" if source.files is None else "Padded"
    if crop == wrong:
        raise ConfigError(f"dataset.augmentation.crop: {crop} is not for {dataset.name}; use {source.crop} or Central")
    return crop
