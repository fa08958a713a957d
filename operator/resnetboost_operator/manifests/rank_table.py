"""The config map with an attempt's rank table."""

from collections.abc import Sequence
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.ranktable import payload

Manifest = dict[str, Any]


def rank_table(job: Job, stage: Stage, attempt: int, table: bytes, digest: str, ranks: Sequence[int]) -> Manifest:
    """The attempt's rank table, and the rank of each index. Immutable: every rank must read the same bytes.

    Raises `payload.TooLarge`.
    """
    ranks_file = msgspec.json.encode({"sha256": digest, "ranks": ranks}).decode()
    packed = payload.pack(names.RANK_TABLE_KEY, table, reserved_bytes=len(ranks_file))
    found = metadata(job, stage, attempt, names.rank_table(job.name, job.uid, stage.name, attempt))
    found["annotations"] = {names.ANNOTATION_RANK_TABLE: digest}
    manifest: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": found, "immutable": True}
    manifest["data"] = {names.RANKS_KEY: ranks_file, **packed.data}
    return manifest | ({"binaryData": packed.binary_data} if packed.binary_data else {})
