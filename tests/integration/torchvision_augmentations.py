"""Writes what torchvision's RandAugment and RandomErasing do, for tests/unit/test_random_changes.py.

Run by an interpreter that has torchvision; it must not import our packages:
  python torchvision_augmentations.py FOLDER
It changes the PNGs of the folder and writes operations.npz, augmented.npz and erased.npz. The last two also have the
numbers that torchvision drew, in order.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from PIL import Image
from torchvision import transforms  # type: ignore[import-not-found, unused-ignore]
from torchvision.transforms import autoaugment  # type: ignore[import-not-found, unused-ignore]

SEEDS = range(60)
SETTINGS = ((2, 9, 31), (3, 4, 5), (1, 30, 31))  # num_ops, magnitude, num_magnitude_bins
ERASED = (3, 24, 40)
drawn: list[float] = []


def recorded(function: Any) -> Any:
    """The function, which appends each number it draws to `drawn`."""

    def draw(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        if found.numel() == 1:
            drawn.append(found.item())
        return found

    return draw


torch.randint = recorded(torch.randint)
torch.rand = recorded(torch.rand)
torch.Tensor.uniform_ = recorded(torch.Tensor.uniform_)


def operations(image: Image.Image, bins: int) -> dict[str, Any]:
    """Each operation with each magnitude and both signs, by name/bins/bin/sign, and the magnitude."""
    space = transforms.RandAugment()._augmentation_space(bins, (image.height, image.width))
    found = {}
    for name, (magnitudes, signed) in space.items():
        for place in range(bins if magnitudes.ndim else 1):
            magnitude = float(magnitudes[place].item()) if magnitudes.ndim else 0.0
            for sign in (1, -1) if signed else (1,):
                changed = autoaugment._apply_op(
                    image, name, sign * magnitude, transforms.InterpolationMode.NEAREST, None
                )
                found[f"{name}/{bins}/{place}/{sign}"] = np.asarray(changed)
                found[f"{name}/{bins}/{place}/{sign}/magnitude"] = np.array(magnitude)
    return found


def augmented(image: Image.Image) -> dict[str, Any]:
    """By seed and setting, the image and what was drawn for it."""
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        for seed in SEEDS:
            torch.manual_seed(seed)
            drawn.clear()
            name = f"{'-'.join(map(str, setting))}/{seed}"
            found[f"{name}/image"] = np.asarray(transforms.RandAugment(*setting)(image))
            found[f"{name}/drawn"] = np.array(drawn)
    return found


def erased() -> dict[str, Any]:
    """By seed, an image of ones and what was drawn for it."""
    found: dict[str, Any] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        drawn.clear()
        found[f"{seed}/image"] = transforms.RandomErasing(scale=(0.02, 0.9))(torch.ones(ERASED)).numpy()
        found[f"{seed}/drawn"] = np.array(drawn)
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pictures = {path.stem: Image.open(path) for path in sorted(folder.glob("*.png"))}
    each = {name: operations(picture, 31) | operations(picture, 5) for name, picture in pictures.items()}
    np.savez(folder / "operations.npz", **{f"{n}/{k}": v for n, found in each.items() for k, v in found.items()})
    whole = {name: augmented(picture) for name, picture in pictures.items()}
    np.savez(folder / "augmented.npz", **{f"{n}/{k}": v for n, found in whole.items() for k, v in found.items()})
    np.savez(folder / "erased.npz", **erased())
