"""The gang's rank table as kubelet brings it into the pod: awaited, verified and told to MindSpore; it makes none.

Written to the letter of MindSpore's and HCCL's documents and never run on an Ascend device.
"""

import gzip
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

import msgspec

from resnetboost_trainer.config import Environment
from resnetboost_trainer.failures import CommunicationError

log = logging.getLogger(__name__)

TABLE, PACKED, RANKS = "hccl.json", "hccl.json.gz", "ranks.json"
TIMEOUT_SECONDS = 1800.0  # HCCL waits no longer for a table that is not completed
POLL_SECONDS = 0.1
SHARED_MEMORY = Path("/dev/shm")  # can be written where the root file system cannot


class Ranks(msgspec.Struct, frozen=True):
    """What comes beside the table: the SHA-256 of its bytes, and the rank of each pod by its index."""

    sha256: str
    ranks: tuple[int, ...]


def place(environment: Environment, timeout: float = TIMEOUT_SECONDS) -> Environment:
    """The environment with the rank that the table gives to this index; to be called before MindSpore is imported.

    Raises CommunicationError when no table comes or it is not the one that was published.
    """
    folder, started = environment.rank_table, time.monotonic()
    if folder is None:
        return environment
    while not _is_there(folder):
        if time.monotonic() - started >= timeout:
            reason = "the job's condition RankTableReady says what it waits for"
            raise CommunicationError(f"{folder}: no rank table came within {timeout:g} s; {reason}")
        time.sleep(POLL_SECONDS)
    told, table = _read(folder, environment.world_size)
    rank = told.ranks[environment.index]
    _tell_mindspore(table, rank, environment.world_size)
    log.info("rank %d of rank table %s after %.1f s", rank, told.sha256[:12], time.monotonic() - started)
    return msgspec.structs.replace(environment, rank=rank, leader=told.ranks[0])


def _is_there(folder: Path) -> bool:
    """Kubelet makes the links of a volume one after another."""
    return (folder / RANKS).exists() and ((folder / TABLE).exists() or (folder / PACKED).exists())


def _read(folder: Path, world_size: int) -> tuple[Ranks, Path]:
    """The ranks, and the table as a file that HCCL can read."""
    packed, table = folder / PACKED, folder / TABLE
    try:
        told = msgspec.json.decode((folder / RANKS).read_bytes(), type=Ranks)
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else table.read_bytes()
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise CommunicationError(f"{folder}: the rank table cannot be read: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != told.sha256:
        raise CommunicationError(f"{folder}: the rank table has SHA-256 {found}, but {told.sha256} was published")
    if sorted(told.ranks) != list(range(world_size)):
        raise CommunicationError(f"{folder}: {RANKS} has not each of the {world_size} ranks once")
    return told, _unpacked(content) if packed.exists() else table


def _unpacked(content: bytes) -> Path:
    """A file of this pod's own; HCCL reads no gzip and wants a name that ends in .json."""
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="resnetboost-", dir=parent)) / TABLE
    path.write_bytes(content)
    return path


def _tell_mindspore(table: Path, rank: int, world_size: int) -> None:
    """A pod has one device, which is number 0 in it whatever its number on the node, which the table has."""
    os.environ.update(RANK_TABLE_FILE=str(table), RANK_ID=str(rank), RANK_SIZE=str(world_size))
    os.environ.setdefault("DEVICE_ID", "0")
