"""Brings weights and checkpoints that are named by an address in object storage onto this machine."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.checkpoint import lineage, store
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.store import Damaged, Manifest
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.scratch import Scratch
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.address import Address
from resnetboost_trainer.storage.bucket import Bucket, Missing, Object, TooLarge
from resnetboost_trainer.storage.cache import Cache

DEFAULTS = ObjectStorage()
# Below an address: more are no run's.
_MOST_OBJECTS = 100_000
_MOST_MANIFESTS = 1000

log = logging.getLogger(__name__)


def local(source: str, field: str, settings: ObjectStorage = DEFAULTS) -> Path:
    """Return a path of this machine: the source itself, or that of the copies of what an address names.

    An address names a file of weights, a checkpoint, or a folder above checkpoints, of which the one that was written
    last and is intact is taken. Raises ConfigError, StorageError.
    """
    return _fetched(source, field, settings) if address.is_address(source) else Path(source)


@functools.cache
def _fetched(source: str, field: str, settings: ObjectStorage) -> Path:
    """Fetch once in the life of the process."""
    place = address.parse(source, field)
    above = Bucket(Address(place.bucket, place.key.rpartition("/")[0]), settings.retry_seconds)
    above.check()
    copies, scratch = cache.of(settings), Scratch("resnetboost-fetched-")
    name = place.key.rpartition("/")[2]
    found = _objects(Bucket(place, settings.retry_seconds), source)
    if not found:
        return _file(above, name, copies, scratch.path, field)
    return _newest(Bucket(place, settings.retry_seconds), found, copies, scratch, field)


def _objects(bucket: Bucket, source: str) -> list[Object]:
    found = []
    for item in bucket.objects():
        found.append(item)
        if len(found) > _MOST_OBJECTS:
            raise ConfigError(f"{source}: more than {_MOST_OBJECTS} objects are below it; name a run or a checkpoint")
    return found


def _file(above: Bucket, name: str, copies: Cache, to: Path, field: str) -> Path:
    """Fetch the one object of that name."""
    found = above.find(name) if name else None
    if found is None:
        raise ConfigError(f"{field}: there is nothing at {above.address.below(name)}; correct the address")
    if found.bytes > weightfile.MAX_BYTES:
        size = f"it has {found.bytes} bytes, more than {weightfile.MAX_BYTES}"
        raise ConfigError(f"{field}: {above.address.below(name)}: {size}, so it is no ResNet's weights alone")
    copies.link(above, found, to / name)
    return to / name


def _newest(bucket: Bucket, found: Sequence[Object], copies: Cache, scratch: Scratch, field: str) -> Path:
    """Fetch the checkpoint that was written last; one that is torn means the one before."""
    objects = {item.key: item for item in found}
    if weightfile.MODEL in objects and store.MANIFEST not in objects:
        copies.link(bucket, objects[weightfile.MODEL], scratch.path / weightfile.MODEL)
        return scratch.path
    for manifest, folder in _manifests(bucket, objects):
        to = scratch.path / "run" / folder
        try:
            for name in (*manifest.files, store.MANIFEST, f"../{lineage.METRICS}"):
                _link(bucket, objects, _joined(folder, name), copies, to / name, name.startswith("../"))
            store.verify_files(to, manifest)
        except (Damaged, Missing) as damage:
            log.warning("%s is skipped: %s", bucket.address.below(folder), damage)
            continue
        return to.resolve()
    raise ConfigError(f"{field}: there is no complete checkpoint below {bucket.address}; correct the address")


def _joined(folder: str, name: str) -> str:
    above, _, _ = folder.rpartition("/")
    return f"{above}/{name[3:]}".lstrip("/") if name.startswith("../") else f"{folder}/{name}".lstrip("/")


def _link(bucket: Bucket, objects: dict[str, Object], key: str, copies: Cache, to: Path, optional: bool) -> None:
    if key in objects:
        copies.link(bucket, objects[key], to)
    elif not optional:
        raise Damaged(f"{key}: missing")


def _manifests(bucket: Bucket, objects: dict[str, Object]) -> list[tuple[Manifest, str]]:
    """List the checkpoints, the last written first, with their folders below the address."""
    read = []
    keys = [key for key in objects if key.rpartition("/")[2] == store.MANIFEST and _is_checkpoint(key)]
    for key in sorted(keys, reverse=True)[:_MOST_MANIFESTS]:
        try:
            manifest = store.decoded(bucket.read(key, store.MANIFEST_LIMIT_BYTES))
        except (Damaged, Missing, TooLarge) as damage:
            log.warning("%s is skipped: %s", bucket.address.below(key), damage)
            continue
        if all(Path(name).name == name for name in manifest.files):
            read.append((manifest, key.rpartition("/")[0]))
    return sorted(read, key=lambda pair: (pair[0].written, pair[0].step), reverse=True)


def _is_checkpoint(key: str) -> bool:
    """False for snapshots, which have manifests too."""
    folder = key.split("/")[-2] if "/" in key else "step-"
    return folder.startswith("step-")
