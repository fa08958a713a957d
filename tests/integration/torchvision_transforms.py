"""Writes torchvision's transformed images for test_transforms.py; must not import our packages.

Run by an interpreter that has torchvision, for the evaluation transform of JPEGs and for hue shifts of PNGs:
  python torchvision_transforms.py FOLDER RESIZE:SIZE ...
  python torchvision_transforms.py FOLDER hue TURN ...
"""

import sys
from pathlib import Path

import numpy as np
from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]


def hues(folder: Path, turns: list[str]) -> None:
    for file in folder.glob("*.png"):
        image = datasets.folder.default_loader(str(file))
        for text in turns:
            np.save(
                folder / f"{file.stem}-{text}.npy", np.asarray(transforms.functional.adjust_hue(image, float(text)))
            )


def evaluation(folder: Path, sizes: list[str]) -> None:
    for file in folder.glob("*.jpg"):
        image = datasets.folder.default_loader(str(file))
        for text in sizes:
            resize, size = (int(number) for number in text.split(":"))
            transform = transforms.Compose(
                [
                    transforms.Resize(resize),
                    transforms.CenterCrop(size),
                    transforms.ToTensor(),
                    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                ]
            )
            np.save(folder / f"{file.stem}-{resize}-{size}.npy", transform(image).numpy())


if __name__ == "__main__":
    directory, *rest = sys.argv[1:]
    if rest[0] == "hue":
        hues(Path(directory), rest[1:])
    else:
        evaluation(Path(directory), rest)
