"""Whoever reads input of others, as functions of bytes: what they return or raise is all that may happen."""

import asyncio
import functools
import gzip
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from resnetboost_api import launcher
from resnetboost_api.connection import Broken, Connection
from resnetboost_api.structure import Structure
from resnetboost_operator import progress_client
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.observed import pods
from resnetboost_operator.ranktable import document, tables
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.validation import jobfile, schema
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.formats import torch_file
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.store import Damaged
from resnetboost_trainer.distributed import ranktable
from resnetboost_trainer.failures import CommunicationError, ConfigError

TESTS = Path(__file__).parents[1]
UID = "0c4a3bd5-4d3b-4f43-9c35-1f0e7a3f0f10"
MODEL = "model.safetensors"
_MOST_STAGES = 100


@dataclass(frozen=True)
class Target:
    """corpus: valid inputs, and near misses. read: takes an input and an empty folder; returns what it says about it.

    errors: what it may raise.
    """

    corpus: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], Sequence[str]]
    errors: tuple[type[Exception], ...]


def _job(data: bytes, folder: Path) -> Sequence[str]:
    """A job file: its YAML, defaults and structure."""
    path = folder / "job.yaml"
    path.write_bytes(data)
    return [str(problem) for problem in Structure(schema.openapi()).problems(schema.defaulted(jobfile.load(path)))]


def _rules(data: bytes, folder: Path) -> Sequence[str]:
    """A job file with the rules between its fields, up to the configs of its stages."""
    path = folder / "job.yaml"
    path.write_bytes(data)
    job = jobfile.load(path)
    if problems := schema.check(job):
        return [str(problem) for problem in problems]
    found = parse_job(schema.defaulted(job))
    for stage in found.spec.stages[:_MOST_STAGES]:
        config.parse(trainer_config(found, stage, 0))
    return []


def _jobs() -> Sequence[bytes]:
    folders = (TESTS / "corpus" / "good", TESTS / "corpus" / "bad", TESTS.parent / "examples")
    return [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.yaml"))]


def _rule_corpus() -> Sequence[bytes]:
    """Few, because each is evaluated rule by rule."""
    return _jobs()[::50]


def _config(data: bytes, folder: Path) -> Sequence[str]:
    """The trainer's config file."""
    path = folder / "config.yaml"
    path.write_bytes(data)
    config.load(path)
    return []


@functools.cache
def _configs() -> Sequence[bytes]:
    examples = sorted((TESTS.parent / "examples").glob("*.yaml"))
    jobs = [parse_job(schema.defaulted(jobfile.load(path))) for path in examples]
    configs = [trainer_config(job, stage, 0) for job in jobs for stage in job.spec.stages]
    return [json.dumps(found).encode() for found in configs]


def _rank_table(data: bytes, folder: Path) -> Sequence[str]:
    """A rank table: HCCL's rules, and the table as structs."""
    said = [str(finding) for finding in checking.judge_bytes(data).findings]
    tables.read(document.parse(data))
    return said


def _rank_tables() -> Sequence[bytes]:
    found = [path.read_bytes() for path in sorted((TESTS / "ranktables").glob("*.json"))]
    return [data for data in found if len(data) < 100_000]


def _delivery(data: bytes, folder: Path) -> Sequence[str]:
    """The files that a rank's pod gets its table by: ranks.json, a NUL, and the packed table."""
    ranks, _, packed = data.partition(b"\x00")
    (folder / ranktable.RANKS).write_bytes(ranks)
    (folder / ranktable.PACKED).write_bytes(packed)
    _, path = ranktable.read(folder, 2)
    path.unlink()
    path.parent.rmdir()
    return []


def _deliveries() -> Sequence[bytes]:
    found = []
    for content in (b"{}", _rank_tables()[0], b"\x00" * 100_000):
        digest = hashlib.sha256(content).hexdigest()
        found.append(json.dumps({"sha256": digest, "ranks": [0, 1]}).encode() + b"\x00" + gzip.compress(content))
    return found


def _progress(data: bytes, folder: Path) -> Sequence[str]:
    """A rank's reply to GET /progress, and the status that would be written of it."""
    found = progress_client.decoded(data)
    if found is None:
        return ["not in the agreed form"]
    assert schema.check_status({"progress": msgspec.to_builtins(found)}) == [], "the API server would refuse the status"
    return []


def _replies() -> Sequence[bytes]:
    full = {
        "state": "Training",
        "stage": "base",
        "attempt": 3,
        "step": 7,
        "totalSteps": 44,
        "epoch": 0.3,
        "totalEpochs": 2,
        "percent": 15,
        "loss": 0.5,
        "accuracy": 0.75,
        "learningRate": 0.1,
        "stepSeconds": 0.2,
        "imagesPerSecond": 300.0,
        "etaSeconds": 8,
        "checkpointStep": 5,
        "resumedStep": 2,
        "top1": 0.9,
        "top5": 0.99,
        "testLoss": 0.2,
        "best": {"step": 5, "metric": "top1", "value": 0.9},
        "slowestRank": 1,
        "slowestComputeSeconds": 0.1,
        "stragglers": [{"rank": 1, "index": 1, "seconds": 0.2, "median": 0.1, "sinceStep": 3}],
        "preflightSeconds": 1.5,
        "skippedImages": 3,
        "heartbeat": 9,
    }
    short = {name: full[name] for name in ("state", "stage", "attempt", "heartbeat")}
    return [json.dumps(found).encode() for found in (full, short)]


def _termination(data: bytes, folder: Path) -> Sequence[str]:
    """The last message of a rank, which kubelet hands on as text."""
    report = pods.read_report(data.decode(errors="replace"))
    msgspec.json.encode(report)
    return []


def _terminations() -> Sequence[bytes]:
    full = {
        "class": "Diverged",
        "message": "the loss is far above its median; lower the learning rate",
        "rank": 1,
        "exitCode": 17,
        "step": 7,
        "checkpointStep": 5,
        "top1": 0.9,
        "testLoss": 0.1,
        "skipped": ["0123456789abcdef"],
        "fault": {"step": 7, "batch": 7},
        "best": {"step": 5, "metric": "top1", "value": 0.9},
        "stoppedEarly": {"step": 7, "reason": "TargetReached", "message": "top1 is 0.9"},
    }
    return [json.dumps(full).encode(), b"Traceback (most recent call last):\n  File x\nMemoryError\n"]


def _manifest(data: bytes, folder: Path) -> Sequence[str]:
    """The manifest of a checkpoint whose files are whole."""
    path = store.attempt_directory(folder, "uid", "base", 0) / "step-00000007"
    path.mkdir(parents=True)
    (path / MODEL).write_bytes(_weights())
    (path / store.MANIFEST).write_bytes(data)
    manifest = store.verify(path, [MODEL])
    for name in manifest.files:
        store.read(path, name)
    try:
        config.recorded(manifest.config)
    except msgspec.ValidationError:
        return ["its config is of another version"]
    return []


def _weights() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(24))


def _described(weights: bytes) -> dict[str, Any]:
    files = {MODEL: {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}}
    (first, *_) = _configs()
    return {
        "format": store.FORMAT,
        "jobUid": "uid",
        "stage": "base",
        "attempt": 0,
        "step": 7,
        "stepsPerEpoch": 22,
        "seed": 0,
        "worldSize": 1,
        "localBatchSize": 64,
        "model": "resnet20/10/1",
        "dataset": "digits",
        "config": json.loads(first),
        "versions": {"mindspore": "2.10.0"},
        "files": files,
    }


def _manifests() -> Sequence[bytes]:
    return [json.dumps(_described(_weights())).encode()]


def _checkpoint(data: bytes, folder: Path) -> Sequence[str]:
    """The weights of a checkpoint, by somebody who can write a matching manifest."""
    path = store.attempt_directory(folder, "uid", "base", 0) / "step-00000007"
    path.mkdir(parents=True)
    (path / MODEL).write_bytes(data)
    (path / store.MANIFEST).write_text(json.dumps(_described(data)))
    store.verify(path, [MODEL])
    store.read(path, MODEL)
    return []


def _torch(data: bytes, folder: Path) -> Sequence[str]:
    """A file of PyTorch's weights."""
    torch_file.read(data)
    return []


def _torch_files() -> Sequence[bytes]:
    import numpy as np

    from support import torchfiles

    matrix: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"conv1.weight": matrix, "fc.bias": np.zeros(4, np.float64)}
    return [torchfiles.state_dict(arrays), torchfiles.state_dict({"n": np.arange(3)})]


def _launcher(data: bytes, folder: Path) -> Sequence[str]:
    """What comes over a connection of launchers; JSON is signed, as by somebody who knows the token.

    What a command starts a rank with is read like a config file.
    """
    try:
        message = asyncio.run(_received(data))
    except Broken:
        return []
    if isinstance(message, launcher.StartAttempt):
        config.parse(message.config)
    if isinstance(message, launcher.GangReport):
        for end in message.ended:
            pods.read_report(end.message)
    return []


async def _received(data: bytes) -> launcher.AnyMessage:
    reader = asyncio.StreamReader()
    if data[:1] == b"{":  # with the key of a connection that has not greeted yet
        mac = hmac.digest(b"", (0).to_bytes(8, "big") + data, hashlib.sha256)
        data = len(data).to_bytes(4, "big") + mac + data
    reader.feed_data(data)
    reader.feed_eof()
    return await Connection(reader, None).receive()  # type: ignore[arg-type]


def _messages() -> Sequence[bytes]:
    (first, *_) = _configs()
    end = launcher.RankEnd(1, 3, 137, _terminations()[0].decode(), 1.5)
    messages = (
        launcher.StartAttempt(3, json.loads(first), 8118, 0.5),
        launcher.GangReport(3, 1, 2, (end,), ((2, 1),)),
        launcher.RankReport(1, 3, False, end),
        launcher.HelloLauncher(1),
        launcher.HelloOperator(),
        launcher.Alive(),
    )
    return [*map(msgspec.json.encode, messages), b"\x00\x00\x00\x02" + b"\x00" * 32 + b"{}"]


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "job": Target(_jobs, _job, (jobfile.JobFileError,)),
        "rules": Target(_rule_corpus, _rules, (jobfile.JobFileError, ConfigError)),
        "config": Target(_configs, _config, (ConfigError,)),
        "ranktable": Target(_rank_tables, _rank_table, (document.DocumentError, tables.TableError)),
        "delivery": Target(_deliveries, _delivery, (CommunicationError,)),
        "progress": Target(_replies, _progress, ()),
        "termination": Target(_terminations, _termination, ()),
        "manifest": Target(_manifests, _manifest, (Damaged,)),
        "checkpoint": Target(lambda: [_weights()], _checkpoint, (Damaged,)),
        "torch": Target(_torch_files, _torch, (Refused,)),
        "launcher": Target(_messages, _launcher, (ConfigError,)),
    }
)
