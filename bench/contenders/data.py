"""One image loader for bench.data: `data.py NAME FOLDER`.

For each input line it reads the folder once, in batches of 32, decoded, cropped at random to 224 x 224, flipped and
normalised, with two threads or processes, and answers with seconds, CPU seconds and images. It must run under a Python
that has only the contender's own packages.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BATCH, SIZE, WORKERS = 32, 224, 2
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def ours(folder: str) -> Callable[[int], Iterator[Any]]:
    """The trainer's loader."""
    from resnetboost_trainer.data import recipe, sampler
    from resnetboost_trainer.data import transforms as photos
    from resnetboost_trainer.data.augmentation import ResizedCrop
    from resnetboost_trainer.data.corrupt import Corrupt
    from resnetboost_trainer.data.image_dataset import ImageDataset
    from resnetboost_trainer.data.loader import DataLoader
    from resnetboost_trainer.data.sources.imagefolder import FolderContents

    crop = ResizedCrop(min_scale=0.08, max_scale=1, min_ratio=0.75, max_ratio=4 / 3)
    contents = FolderContents(Path(folder), sorted(os.listdir(folder)))
    split = ImageDataset(contents, photos.Augmented(crop, 0.5, None), (recipe.IMAGE_SIZE,) * 2)
    feed = DataLoader(split, Corrupt(0), WORKERS)
    share = sampler.DistributedSampler(0, BATCH, 0, 1, len(split.labels))
    return lambda epoch: feed.batches(share.steps(epoch * share.per_epoch, (epoch + 1) * share.per_epoch))


def pillow(folder: str) -> Callable[[int], Iterator[Any]]:
    """Plain Pillow and NumPy in threads, one batch ahead."""
    import numpy as np
    from PIL import Image

    files = sorted(str(path) for path in Path(folder).rglob("*.jpg"))
    mean, deviation = np.array(MEAN, np.float32), np.array(DEVIATION, np.float32)
    pool = ThreadPoolExecutor(WORKERS)

    def one(file: str) -> Any:
        image = Image.open(file).convert("RGB")
        x, y, width, height = _crop(*image.size)
        image = image.crop((x, y, x + width, y + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        array = np.asarray(image, np.float32) / 255
        return ((array - mean) / deviation).transpose(2, 0, 1)

    def epoch(number: int) -> Iterator[Any]:
        order = random.Random(number).sample(files, len(files))
        images = pool.map(one, order)
        for _ in range(len(order) // BATCH):
            yield np.stack([next(images) for _ in range(BATCH)])

    return epoch


def _crop(width: int, height: int) -> tuple[int, int, int, int]:
    while True:
        area, ratio = width * height * random.uniform(0.08, 1), random.uniform(3 / 4, 4 / 3)
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if w <= width and h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h


def torchvision(folder: str) -> Callable[[int], Iterator[Any]]:
    """ImageFolder and a DataLoader with persistent worker processes."""
    from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    return _loader(datasets.ImageFolder(folder, transforms.Compose(steps)))


def torchvisionio(folder: str) -> Callable[[int], Iterator[Any]]:
    """The same with torchvision's own decoder and tensor transforms."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from torchvision import datasets, io, transforms  # type: ignore[import-not-found, unused-ignore]

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    steps += [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(MEAN, DEVIATION)]
    return _loader(datasets.ImageFolder(folder, transforms.Compose(steps), loader=io.read_image))


def _loader(dataset: Any) -> Callable[[int], Iterator[Any]]:
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
    return lambda _: iter(loader)


def cpu_seconds() -> float:
    """CPU seconds of this process and its living children."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    total = time.process_time()
    for pid in children:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main(name: str, folder: str) -> None:
    """Read the folder once per input line, and once before the first as warm-up."""
    epoch = {"ours": ours, "pillow": pillow, "torchvision": torchvision, "torchvisionio": torchvisionio}
    run = epoch[name](folder)
    for _ in run(0):
        pass
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin, start=1):
        started, used = time.perf_counter(), cpu_seconds()
        count = sum(len(batch[0] if isinstance(batch, list | tuple) else batch) for batch in run(number))
        print(time.perf_counter() - started, cpu_seconds() - used, count, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder has modules with the names of third-party packages
    main(sys.argv[1], sys.argv[2])
