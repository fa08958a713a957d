"""Waits for the rank table that kubelet mounts into the pod, verifies it and passes it to MindSpore.

Written by MindSpore's and HCCL's documents; it has never run on an Ascend device.
"""

import gzip
import hashlib
import logging
import os
import tempfile
import time
import zlib
from pathlib import Path
from typing import Annotated

import msgspec

from resnetboost_trainer.config import Environment
from resnetboost_trainer.failures import CommunicationError

log = logging.getLogger(__name__)

TABLE, PACKED, RANKS = "hccl.json", "hccl.json.gz", "ranks.json"
TIMEOUT_SECONDS = 1800.0  # HCCL waits no longer for a table that is not completed
POLL_SECONDS = 0.1
MAX_BYTES = 64 << 20  # what a table of the most ranks that HCCL takes has
SHARED_MEMORY = Path("/dev/shm")  # can be written where the root file system cannot


class Ranks(msgspec.Struct, frozen=True):
    """Contents of ranks.json: the SHA-256 of the table's bytes, and the rank of each pod by its index."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    ranks: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...]


def place(environment: Environment, timeout: float = TIMEOUT_SECONDS) -> Environment:
    """Wait for the table; returns the environment with the rank of this pod. Call it before MindSpore is imported.

    Raises CommunicationError when no table arrives or it is not the published one.
    """
    folder, started = environment.rank_table, time.monotonic()
    if folder is None:
        return environment
    while not _is_there(folder):
        if time.monotonic() - started >= timeout:
            reason = "the job's condition RankTableReady says what it waits for"
            raise CommunicationError(f"{folder}: no rank table arrived within {timeout:g} s; {reason}")
        time.sleep(POLL_SECONDS)
    published, table = read(folder, environment.world_size)
    rank = published.ranks[environment.index]
    _set_variables(table, rank, environment.world_size)
    log.info("rank %d of rank table %s after %.1f s", rank, published.sha256[:12], time.monotonic() - started)
    indexes = tuple(sorted(range(environment.world_size), key=published.ranks.__getitem__))
    return msgspec.structs.replace(environment, rank=rank, leader=published.ranks[0], indexes=indexes)


def _is_there(folder: Path) -> bool:
    """Whether both files are there: kubelet creates the links of a volume one after another."""
    return (folder / RANKS).exists() and ((folder / TABLE).exists() or (folder / PACKED).exists())


def read(folder: Path, world_size: int) -> tuple[Ranks, Path]:
    """The ranks, and the table as a file that HCCL can read. Raises CommunicationError."""
    packed, table = folder / PACKED, folder / TABLE
    try:
        published = msgspec.json.decode((folder / RANKS).read_bytes(), type=Ranks)
        content = _unzipped(packed) if packed.exists() else table.read_bytes()
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CommunicationError(f"{folder}: the rank table cannot be read: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != published.sha256:
        raise CommunicationError(f"{folder}: the rank table has SHA-256 {found}, but {published.sha256} was published")
    if sorted(published.ranks) != list(range(world_size)):
        raise CommunicationError(f"{folder}: {RANKS} has not each of the {world_size} ranks once")
    return published, _unpacked(content) if packed.exists() else table


def _unzipped(packed: Path) -> bytes:
    """The content of a gzip file. Raises ValueError for one that says to be larger than any table."""
    with gzip.open(packed) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{packed.name} unpacks to more than {MAX_BYTES} bytes")
    return content


def _unpacked(content: bytes) -> Path:
    """Write the unpacked table to a new file: HCCL reads no gzip, and its name must end in .json."""
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="resnetboost-", dir=parent)) / TABLE
    path.write_bytes(content)
    return path


def _set_variables(table: Path, rank: int, world_size: int) -> None:
    """Set MindSpore's variables. A pod's only device has the number 0 in it; the table has its number on the node."""
    os.environ.update(RANK_TABLE_FILE=str(table), RANK_ID=str(rank), RANK_SIZE=str(world_size))
    os.environ.setdefault("DEVICE_ID", "0")
