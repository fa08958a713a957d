"""Checkpoints in object storage: copied beside the training, found again, torn, lost, refused; on a real S3 gateway."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from beds.objectstorage import Gateway
from beds.operator.wait import eventually
from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from resnetboost_trainer.checkpoint.uploader import Uploader
from resnetboost_trainer.failures import ConfigError, StorageError
from support.remotecheckpoints import copies, prepare
from support.smallcheckpoints import CONTENTS, MODEL, keep, manifest, save, tree


def uploaded(tmp_path: Path, *steps: int, **changes: Any) -> None:
    """Put checkpoints of these steps into the bucket, by way of a folder that is lost afterwards."""
    root = tmp_path / "lost"
    for step in steps:
        assert copies(root).upload(save(root, step, **changes))
    shutil.rmtree(root)


def newest(root: Path, uid: str = "uid") -> int | None:
    found = store.newest(root, uid, "base", [MODEL])
    return None if found is None else found.manifest.step


class Saving:
    """A saver with an uploader, as the leader has it."""

    def __init__(self, root: Path, keep_: int = 3) -> None:
        self.saved: list[int] = []
        keeping: dict[Kind, Keeping] = {"step": Keeping(keep_, self._saved), "snapshot": Keeping(2, self._saved)}
        self.remote = copies(root)
        self.saver = Saver(root, keeping, Uploader(self.remote, keeping))

    def _saved(self, of: Manifest, size: int, seconds: float) -> None:
        self.saved.append(of.step)


def test_a_checkpoint_is_there_again_when_its_volume_is_gone(storage: Gateway, tmp_path: Path) -> None:
    before = tree(save(tmp_path / "here", 40).parents[2])
    copies(tmp_path / "here").upload(tmp_path / "here/uid/base/attempt-0/step-00000040")
    prepare(tmp_path / "elsewhere")
    assert tree(tmp_path / "elsewhere/uid") == before


def test_the_saver_uploads_in_the_background_and_prunes_both_places(storage: Gateway, tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    for step in (10, 20, 30, 40):
        saving.saver.save(manifest(step), CONTENTS)
        saving.saver.wait()
    assert saving.saved == [10, 20, 30, 40]
    assert [path.name for path in saving.remote.candidates("uid", "base")] == [f"step-000000{n}" for n in (40, 30, 20)]
    assert {path.parent.name for path in storage.bucket.rglob("*.safetensors")} == {
        "step-00000020",
        "step-00000030",
        "step-00000040",
    }


@pytest.mark.parametrize("torn", ["manifest.json", MODEL])
def test_a_torn_upload_means_the_checkpoint_before(torn: str, storage: Gateway, tmp_path: Path) -> None:
    uploaded(tmp_path, 20, 40)
    (storage.bucket / "runs/uid/base/attempt-0/step-00000040" / torn).unlink()
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 20


def test_a_changed_upload_means_the_checkpoint_before(storage: Gateway, tmp_path: Path) -> None:
    uploaded(tmp_path, 20, 40)
    file = storage.bucket / "runs/uid/base/attempt-0/step-00000040" / MODEL
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 20
    assert not list((tmp_path / "new").rglob("*.partial"))


def test_a_manifest_that_was_moved_or_names_other_folders_is_no_checkpoint(storage: Gateway, tmp_path: Path) -> None:
    uploaded(tmp_path, 20, 40)
    attempt = storage.bucket / "runs/uid/base/attempt-0"
    shutil.copytree(attempt / "step-00000040", attempt / "step-00000060")
    file = attempt / "step-00000040/manifest.json"
    file.write_text(file.read_text().replace(MODEL, f"../{MODEL}"))
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 20
    assert not (tmp_path / "new/uid/base/attempt-0" / MODEL).exists()


def test_what_is_here_and_intact_is_not_fetched_and_what_is_further_is_used(storage: Gateway, tmp_path: Path) -> None:
    uploaded(tmp_path, 20)
    here = save(tmp_path / "new", 40)
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 40
    assert not (here.parent / "step-00000020").exists()
    (here / MODEL).write_bytes(b"damaged")
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 20


def test_the_next_attempt_uploads_what_the_one_before_could_not(storage: Gateway, tmp_path: Path) -> None:
    save(tmp_path, 20)
    save(tmp_path, 40)
    keep(tmp_path, 30)
    saving = Saving(tmp_path)
    saving.saver.catch_up(manifest(0, attempt=1))
    saving.saver.wait()
    assert [path.name for path in saving.remote.candidates("uid", "base")] == ["step-00000040"]
    assert [path.name for path in saving.remote.candidates("uid", "base", kind="snapshot")] == ["snapshot-00000030"]
    assert saving.saved == []


def test_an_outage_is_waited_for_and_nothing_is_lost(storage: Gateway, tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    storage.stop()
    saving.saver.save(manifest(20), CONTENTS)
    threading.Timer(0.3, storage.start).start()
    saving.saver.wait()
    prepare(tmp_path / "new")
    assert newest(tmp_path / "new") == 20
    assert saving.saved == [20]


def test_an_outage_that_does_not_end_is_a_storage_error(storage: Gateway, tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    storage.stop()
    saving.saver.save(manifest(20), CONTENTS)
    with pytest.raises(
        StorageError, match=r"^s3://bucket/runs/.*: the storage does not answer; check AWS_ENDPOINT_URL"
    ):
        saving.saver.wait()
    with pytest.raises(StorageError, match="does not answer"):
        saving.saver.check()
    assert newest(tmp_path) == 20


def test_a_bucket_that_vanishes_is_a_storage_error_and_training_hears_of_it(storage: Gateway, tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    shutil.rmtree(storage.bucket)
    saving.saver.save(manifest(20), CONTENTS)

    def failure() -> str:
        try:
            saving.saver.check()
        except StorageError as error:
            return str(error)
        return ""

    told = eventually(failure, bool, "a failed upload")
    assert "there is no such bucket; create it, or correct the bucket's name or AWS_ENDPOINT_URL" in told


def test_a_slow_storage_gets_the_newest_checkpoint_and_all_snapshots(storage: Gateway, tmp_path: Path) -> None:
    saving = Saving(tmp_path, keep_=1)
    storage.stop()
    for step in (10, 20, 30):
        saving.saver.save(manifest(step, layout="of six"), snapshots.contents(CONTENTS[MODEL]["w"].ravel()), "snapshot")
        saving.saver.save(manifest(step), CONTENTS)
    eventually(lambda: newest(tmp_path), lambda step: step == 30, "the last local checkpoint")
    storage.start()
    saving.saver.wait()
    assert [path.name for path in saving.remote.candidates("uid", "base")] == ["step-00000030"]
    found = [path.name for path in saving.remote.candidates("uid", "base", kind="snapshot")]
    assert found == ["snapshot-00000030", "snapshot-00000020"]


def test_an_earlier_job_is_found_by_its_name(storage: Gateway, tmp_path: Path) -> None:
    uploaded(tmp_path, 20, job_uid="first")
    uploaded(tmp_path, 10, job_uid="second")
    uploaded(tmp_path, 60, job_uid="third", job_name="others")
    prepare(tmp_path / "never")
    assert not tree(tmp_path / "never")
    prepare(tmp_path / "new", checkpoint={"resume": "IfPresent"})
    assert [newest(tmp_path / "new", uid) for uid in ("first", "second", "third")] == [None, 10, None]


def test_a_stage_gets_the_checkpoint_and_the_snapshots_that_it_starts_from(storage: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "lost"
    for path in (save(root, 20), keep(root, 10), keep(root, 20), keep(root, 20, stage="other")):
        copies(root).upload(path)
    prepare(tmp_path / "tune", stage="tune", startFrom={"stage": "base"})
    assert newest(tmp_path / "tune") == 20 and not list((tmp_path / "tune").rglob("snapshot-*"))
    pca: dict[str, Any] = {
        "algorithm": "PCA",
        "pca": {"components": 2},
        "stage": "tune",
        "startFrom": {"stage": "base"},
    }
    pca |= {"learningRate": None, "momentum": None, "labelSmoothing": 0}
    prepare(tmp_path / "pca", **pca)
    assert [found.step for found in snapshots.find(tmp_path / "pca", "uid", "base")] == [10, 20]


def test_only_the_leader_makes_requests(storage: Gateway, tmp_path: Path) -> None:
    storage.stop()
    prepare(tmp_path, index=1)
    with pytest.raises(StorageError, match="does not answer"):
        prepare(tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the secret key does not belong to the access key; set AWS_ACCESS_KEY_ID"),
        ("AWS_ACCESS_KEY_ID", "wrong", "the storage does not know this access key; set AWS_ACCESS_KEY_ID"),
        ("AWS_ACCESS_KEY_ID", "", "there are no credentials for http://127.0.0.1:"),
        ("AWS_ENDPOINT_URL", "storage", "'storage' is no URL; use one such as https://storage.example.com"),
    ],
)
def test_wrong_access_ends_the_job_at_its_start(
    variable: str, value: str, message: str, storage: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as raised:
        prepare(tmp_path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_wrong_bucket_ends_the_job_at_its_start(storage: Gateway, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^s3://another/runs: there is no such bucket; create it, or correct"):
        prepare(tmp_path, checkpoint={"url": "s3://another/runs"})


@pytest.mark.parametrize(
    "url", ["s3://Bucket/x", "s3://b", "s3://user:secret@bucket/x", "gs://bucket/x", "s3://bucket/a/../b"]
)
def test_an_address_is_checked(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s3://bucket/path|leave that out"):
        prepare(tmp_path, checkpoint={"url": url})
