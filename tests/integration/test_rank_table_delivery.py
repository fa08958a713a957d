"""Rank tables delivered to a pod as kubelet delivers them, and real trainer processes that wait for them."""

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from support import pcabases, rankgang
from support.trainerconfig import GOOD

STUBS = Path(__file__).parent / "stubs"
TABLE = b'{"version":"1.0","status":"completed"}'
TIMEOUT_SECONDS = 120


def delivery(table: bytes = TABLE, ranks: tuple[int, ...] = (2, 0, 1), **changes: Any) -> dict[str, bytes]:
    told = {"sha256": hashlib.sha256(table).hexdigest(), "ranks": ranks} | changes
    return {"hccl.json": table, "ranks.json": json.dumps(told).encode()}


def deliver(folder: Path, files: dict[str, bytes]) -> None:
    """Like kubelet's atomic writer: a folder with the files, a link to it that is swapped, a link for each file."""
    hidden = folder / "..2026_01_31_12_00_00.1"
    hidden.mkdir()
    for name, content in files.items():
        (hidden / name).write_bytes(content)
    (folder / "..data_tmp").symlink_to(hidden.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in files:
        (folder / name).symlink_to(Path("..data", name))


def start(arguments: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    own = {"RESNETBOOST_RANK_TABLE": str(folder), "RESNETBOOST_INDEX": "1", "RESNETBOOST_WORLD_SIZE": "3"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK_", "DEVICE_"))}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment | own | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def placed(folder: Path, **variables: str) -> subprocess.Popen[str]:
    return start([str(STUBS / "placedrank.py")], folder, **variables)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    return folder


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    return dict(json.loads(output))


def test_a_rank_is_placed_by_the_table_that_is_there(folder: Path) -> None:
    deliver(folder, delivery())
    assert result(placed(folder)) == {
        "rank": 0,
        "leader": 2,
        "index": 1,
        "RANK_TABLE_FILE": str(folder / "hccl.json"),
        "RANK_ID": "0",
        "RANK_SIZE": "3",
        "DEVICE_ID": "0",
    }


def test_a_rank_waits_for_a_table_that_comes_late_and_file_by_file(folder: Path) -> None:
    process = placed(folder)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    files = delivery()
    (folder / "hccl.json").write_bytes(files["hccl.json"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    (folder / "hccl.json").unlink()
    deliver(folder, files)
    assert result(process)["rank"] == 0


def test_hccl_gets_a_compressed_table_unpacked(folder: Path) -> None:
    files = delivery()
    deliver(folder, {"hccl.json.gz": gzip.compress(TABLE), "ranks.json": files["ranks.json"]})
    path = Path(result(placed(folder))["RANK_TABLE_FILE"])
    assert (path.read_bytes(), path.suffix) == (TABLE, ".json")
    path.unlink()
    path.parent.rmdir()


def test_a_user_may_override_the_device_id(folder: Path) -> None:
    deliver(folder, delivery())
    assert result(placed(folder, DEVICE_ID="3"))["DEVICE_ID"] == "3"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (delivery(sha256="0" * 64), "was published"),
        (delivery(ranks=(0, 1)), "has not each of the 3 ranks once"),
        (delivery(ranks=(0, 1, 1)), "has not each of the 3 ranks once"),
        ({"hccl.json": TABLE, "ranks.json": b"{"}, "cannot be read"),
        ({"hccl.json.gz": b"no gzip", "ranks.json": delivery()["ranks.json"]}, "cannot be read"),
    ],
    ids=["another table", "a rank too few", "a rank twice", "half a file", "broken compression"],
)
def test_an_unpublished_table_ends_the_trainer(
    folder: Path, tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    deliver(folder, files)
    process = trainer(folder, tmp_path)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 14, errors
    message = json.loads((tmp_path / "termination-log").read_text())
    assert message["class"] == "CommunicationError"
    assert says in message["message"]


def test_a_trainer_that_is_asked_to_stop_before_its_table_came_stops_at_once(folder: Path, tmp_path: Path) -> None:
    process = trainer(folder, tmp_path)
    assert process.stderr is not None
    while "metrics and progress" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 16, errors
    assert "nothing was trained" in json.loads((tmp_path / "termination-log").read_text())["message"]


def trainer(folder: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """A real trainer process of an Ascend job."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(GOOD | {"device": {"type": "Ascend"}}))
    variables = {
        "RESNETBOOST_CONFIG": str(config),
        "RESNETBOOST_BIND_ADDRESS": "127.0.0.1",
        "RESNETBOOST_METRICS_PORT": "0",
        "RESNETBOOST_TERMINATION_LOG": str(tmp_path / "termination-log"),
    }
    return start(["-m", "resnetboost_trainer"], folder, **variables)


def led_by(rank: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Results of three real ranks led by that one."""
    monkeypatch.setenv("LEADER", str(rank))
    folder.mkdir()
    pcabases.leave(folder / "checkpoints", pcabases.trajectory())
    return rankgang.run("ledrank.py", 3, folder)


@pytest.mark.slow
def test_the_rank_of_index_0_leads_whatever_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only index 0 reads the checkpoints, and a rank table may give it any rank."""
    first, second = (led_by(rank, tmp_path / str(rank), monkeypatch) for rank in (0, 1))
    assert [bool(rank["has_checkpoint"]) for rank in second] == [False, True, False]
    for number, (rank, same) in enumerate(zip(second, first, strict=True)):
        np.testing.assert_array_equal(rank["told"], 1)
        assert rank["integers"].tolist() == [2**24 + 2, 2**53 + 1, 2**63 - 1, 3 * (2**24 + 1), 3 * 2**53 + 3]
        np.testing.assert_array_equal(rank["weights"], 2)
        np.testing.assert_array_equal(rank["statistics"], number + 1)
        np.testing.assert_array_equal(rank["basis"], same["basis"])
