"""Writes what torchvision's evaluation transform makes of JPEGs, for test_photos.py; it must not import what is ours.

Run by an interpreter that has torchvision: python torchvision_transforms.py FOLDER RESIZE:SIZE ...
"""

import sys
from pathlib import Path

import numpy as np
from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]


def main(folder: Path, sizes: list[str]) -> None:
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
    main(Path(sys.argv[1]), sys.argv[2:])
