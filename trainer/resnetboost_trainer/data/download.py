"""Brings a data set that is named by an address in object storage onto this machine, before it is read.

Its files come out of the machine's bounded cache, or into it; the data set's own folder has links to them, so that what
is in use stays although the cache may have deleted it.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError, DataError
from resnetboost_trainer.scratch import Scratch
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.address import Address
from resnetboost_trainer.storage.bucket import Bucket, Object
from resnetboost_trainer.storage.cache import GIGABYTE

FIELD = "dataset.path"
# Files at the same time: each waits for the network most of its time.
_THREADS = 16

log = logging.getLogger(__name__)


def local(dataset: config.Dataset, settings: ObjectStorage) -> config.Dataset:
    """Return the data set with a path of this machine. Raises ConfigError, DataError, StorageError."""
    if dataset.path is None or not address.is_address(dataset.path):
        return dataset
    place = address.parse(dataset.path, FIELD)
    bucket = Bucket(place, settings.retry_seconds)
    bucket.check()
    found = list(bucket.objects())
    name = place.key.rpartition("/")[2] or place.bucket
    if not found:
        bucket = Bucket(Address(place.bucket, place.key.rpartition("/")[0]), settings.retry_seconds)
        found = [file for file in [bucket.find(name)] if file is not None]
        root = Path()
    else:
        root = Path(name)
    if not found:
        raise DataError(f"{FIELD}: there is nothing at {place}; correct the address, or put the data set there")
    size = sum(file.bytes for file in found)
    if size > settings.cache_gigabytes * GIGABYTE:
        told = f"{place} has {size / GIGABYTE:.1f} GiB, and storage.cacheGigabytes is {settings.cache_gigabytes}"
        raise ConfigError(f"{FIELD}: {told}; raise it, and give the pods so much room")
    return msgspec.structs.replace(dataset, path=str(_linked(bucket, found, root, settings) / name))


def _linked(bucket: Bucket, found: list[Object], root: Path, settings: ObjectStorage) -> Path:
    """Make a folder with links to the copies of all these files, under `root` in it."""
    started, copies, scratch = time.monotonic(), cache.of(settings), Scratch("resnetboost-data-")
    for folder in {(scratch.path / root / file.key).parent for file in found}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="download") as threads:
        list(threads.map(lambda file: copies.link(bucket, file, scratch.path / root / file.key), found))
    text = "%s: %d files, %d of them from the cache, in %.1f s"
    log.info(text, bucket.address, len(found), copies.hits, time.monotonic() - started)
    return scratch.path
