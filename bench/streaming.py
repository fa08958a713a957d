"""An epoch of photographs from object storage, with an empty and a full cache, against the same files on the disk.

The loader alone, without any training: images/s of two workers. The gateway (versitygw) runs on the same cores.
"""

import shutil
import tempfile
import time
from pathlib import Path

from beds.objectstorage import Gateway
from bench import gateways
from bench.entries import Entry, ratio
from resnetboost_api.dataset import DatasetName
from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.cli import to_mindrecord
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import DataLoader
from resnetboost_trainer.data.sampler import DistributedSampler
from support import photographs

ROUNDS, IMAGES, BATCH, WORKERS = 5, 1536, 32, 2
NAMES: tuple[DatasetName, ...] = ("ImageFolder", "MindRecord")


def measure() -> list[Entry]:
    """Images per second, interleaved: from the disk, from the storage, and from the cache."""
    with tempfile.TemporaryDirectory(dir=".") as folder, gateways.running() as gateway:
        root = Path(folder)
        photographs.folder(gateway.bucket / "ImageFolder", IMAGES, 8, width=500, height=375)
        to_mindrecord.convert(gateway.bucket / "ImageFolder", gateway.bucket / "MindRecord", "train", "val", 4, 0)
        return [entry for name in NAMES for entry in _measure(name, gateway, root / name)]


def _measure(name: DatasetName, gateway: Gateway, cache: Path) -> list[Entry]:
    local = _load(name, gateway.bucket, cache)
    for _ in _epoch(local, 0):  # the page cache
        pass
    found: dict[str, list[float]] = {"local": [], "cold": [], "warm": []}
    for epoch in range(1, ROUNDS + 1):
        found["local"].append(_speed(local, epoch))
        shutil.rmtree(cache, ignore_errors=True)
        for state in ("cold", "warm"):
            found[state].append(_speed(_load(name, "s3://bucket", cache), epoch))
    return [
        ratio(
            f"streaming_{name.lower()}_{state}", found[state], found["local"], "images/s", "the same files on the disk"
        )
        for state in ("cold", "warm")
    ]


def _load(name: DatasetName, root: Path | str, cache: Path) -> registry.Dataset:
    dataset = config.Dataset(name=name, path=f"{root}/{name}", image_size=224)
    return registry.load(dataset, 2, storage=ObjectStorage(cache_path=str(cache.absolute())))


def _speed(found: registry.Dataset, epoch: int) -> float:
    started = time.perf_counter()
    images = sum(_epoch(found, epoch))
    return images / (time.perf_counter() - started)


def _epoch(found: registry.Dataset, epoch: int) -> list[int]:
    feed, share = DataLoader(found.train, Corrupt(0), WORKERS), DistributedSampler(0, BATCH, 0, 1, IMAGES)
    requests = share.steps(epoch * share.per_epoch, (epoch + 1) * share.per_epoch)
    try:
        return [len(batch.labels) for batch in feed.batches(requests)]
    finally:
        feed.close()
