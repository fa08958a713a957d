"""Brings weights and checkpoints that are named by an address in object storage onto this machine."""

import functools
import logging
from pathlib import Path

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.checkpoint import lineage, store, which
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.store import Damaged, Kind, Manifest
from resnetboost_trainer.checkpoint.which import Place
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.scratch import Scratch
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.address import Address
from resnetboost_trainer.storage.bucket import Bucket, Changed, Missing, Object, TooLarge
from resnetboost_trainer.storage.cache import Cache

# Of a command, whose user waits for it; a job says its own.
OF_A_COMMAND = ObjectStorage(retry_seconds=30)
# Below an address: more are no run's.
_MOST_OBJECTS = 100_000
_MOST_MANIFESTS = 1000

log = logging.getLogger(__name__)


def local(source: str, field: str, settings: ObjectStorage = OF_A_COMMAND, chosen: str = "last") -> Path:
    """Return a path of this machine: the source itself, or that of the copies of what an address names.

    An address names a file of weights, a checkpoint, or a folder above checkpoints, of which an intact one is taken:
    the newest, or that which `chosen` selects as --which does. Raises ConfigError, StorageError.
    """
    return _fetched(source, field, settings, chosen) if address.is_address(source) else Path(source)


def metrics(source: str, field: str, root: Path) -> list[Manifest]:
    """Fetch the metrics of the job below an address that saved last, into a folder of checkpoints.

    Return the last manifest of each of its stages, the earliest first. Raises ConfigError, StorageError, OSError.
    """
    bucket = Bucket(address.parse(source, field), OF_A_COMMAND.retry_seconds)
    bucket.check()
    objects = {item.key: item for item in _objects(bucket, source)}
    places = _manifests(bucket, objects, "step")
    if not places:
        raise ConfigError(f"{field}: there is no checkpoint below {bucket.address}; correct the address")
    newest, stages = places[0][0], dict[str, Manifest]()
    for manifest, folder in places:
        names = (manifest.job_uid, manifest.stage)
        if manifest.job_uid != newest.job_uid or any(Path(name).name != name for name in names):
            continue
        stages.setdefault(manifest.stage, manifest)
        path = store.attempt_directory(root, *names, manifest.attempt) / lineage.METRICS
        found = objects.get(_joined(folder, f"../{lineage.METRICS}"))
        if found is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bucket.read(found.key, lineage.MAX_BYTES))
    return sorted(stages.values(), key=lambda manifest: manifest.written)


@functools.cache
def _fetched(source: str, field: str, settings: ObjectStorage, chosen: str) -> Path:
    """Fetch once in the life of the process."""
    place = address.parse(source, field)
    above = Bucket(Address(place.bucket, place.key.rpartition("/")[0]), settings.retry_seconds)
    above.check()
    copies, scratch = cache.of(settings), Scratch("resnetboost-fetched-")
    name = place.key.rpartition("/")[2]
    found = _objects(Bucket(place, settings.retry_seconds), source)
    objects = {item.key: item for item in found}
    if chosen not in which.LAST and (not found or store.MANIFEST in objects or weightfile.MODEL in objects):
        raise ConfigError(f"--which {chosen}: it selects a checkpoint of a folder, and {place} is none; leave it out")
    if not found:
        return _file(above, name, copies, scratch.path, field)
    return _chosen(Bucket(place, settings.retry_seconds), objects, copies, scratch, field, chosen)


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


def _chosen(
    bucket: Bucket, objects: dict[str, Object], copies: Cache, scratch: Scratch, field: str, chosen: str
) -> Path:
    """Fetch the checkpoint that is chosen; one that is torn means the next best, or the one before."""
    if weightfile.MODEL in objects and store.MANIFEST not in objects:
        copies.link(bucket, objects[weightfile.MODEL], scratch.path / weightfile.MODEL)
        return scratch.path
    places = which.selected(str(bucket.address), chosen, lambda kind: _manifests(bucket, objects, kind))
    for manifest, folder in places:
        to = scratch.path / "run" / folder
        try:
            for name in (*manifest.files, store.MANIFEST, f"../{lineage.METRICS}"):
                _link(bucket, objects, _joined(folder, name), copies, to / name, name.startswith("../"))
            store.verify_files(to, manifest)
        except (Damaged, Missing, Changed) as damage:
            log.warning("%s is skipped: %s", bucket.address.below(folder.as_posix()), damage)
            continue
        return to.resolve()
    raise ConfigError(f"{field}: there is no complete checkpoint below {bucket.address}; correct the address")


def _joined(folder: Path, name: str) -> str:
    return (folder.parent / name[3:] if name.startswith("../") else folder / name).as_posix()


def _link(bucket: Bucket, objects: dict[str, Object], key: str, copies: Cache, to: Path, optional: bool) -> None:
    if key in objects:
        copies.link(bucket, objects[key], to)
    elif not optional:
        raise Damaged(f"{key}: missing")


def _manifests(bucket: Bucket, objects: dict[str, Object], kind: Kind) -> list[Place]:
    """List the checkpoints of a kind, the newest first, with their folders below the address."""
    read = []
    keys = [key for key in objects if key.rpartition("/")[2] == store.MANIFEST and _is_checkpoint(key, kind)]
    for key in sorted(keys, reverse=True)[:_MOST_MANIFESTS]:
        try:
            manifest = store.decoded(bucket.read(key, store.MANIFEST_LIMIT_BYTES))
        except (Damaged, Missing, TooLarge) as damage:
            log.warning("%s is skipped: %s", bucket.address.below(key), damage)
            continue
        if all(Path(name).name == name for name in manifest.files):
            read.append((manifest, Path(key).parent))
    return weightfile.newest_first(read)


def _is_checkpoint(key: str, kind: Kind) -> bool:
    """False for other kinds, such as snapshots, which have manifests too. The address itself is of any kind."""
    folder = key.split("/")[-2] if "/" in key else "step-"
    return folder.startswith(f"{kind}-")
