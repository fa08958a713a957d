"""Looking up an earlier job's checkpoint: which job, which checkpoint, and stray files on a shared volume."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resnetboost_trainer.checkpoint import lookup, store
from resnetboost_trainer.checkpoint.lookup import Job
from resnetboost_trainer.checkpoint.store import Found
from support.smallcheckpoints import MODEL, save, tree


def find(root: Path) -> Found | None:
    return lookup.newest(root, Job("default", "digits"), "base", [MODEL], but="ours")


def found_step(root: Path) -> int | None:
    found = find(root)
    return None if found is None else found.manifest.step


def test_the_furthest_checkpoint_of_an_earlier_job_of_our_name_is_found(tmp_path: Path) -> None:
    save(tmp_path, 40, attempt=3)
    save(tmp_path, 20, attempt=8)
    found = find(tmp_path)
    assert found is not None
    assert (found.manifest.job_uid, found.manifest.step) == ("uid", 40)


def test_among_earlier_jobs_the_one_that_saved_last_wins(tmp_path: Path) -> None:
    save(tmp_path, 80, job_uid="long ago")
    save(tmp_path, 20, job_uid="a while ago")
    save(tmp_path, 40, job_uid="just now")
    assert found_step(tmp_path) == 40
    shutil.rmtree(tmp_path / "just now")
    assert found_step(tmp_path) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"job_name": "another"},
        {"job_namespace": "another"},
        {"stage": "another"},
        {"job_name": "", "job_namespace": ""},
        {"job_uid": "ours"},
    ],
    ids=["another name", "another namespace", "another stage", "without a name, as of old", "our own"],
)
def test_checkpoints_of_other_names_are_ignored(changes: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, 40, **changes)
    assert find(tmp_path) is None


def test_damaged_checkpoints_are_skipped(tmp_path: Path) -> None:
    save(tmp_path, 60, job_uid="before")
    save(tmp_path, 20, job_uid="last")
    (save(tmp_path, 40, job_uid="last") / MODEL).write_text("not the model")
    assert found_step(tmp_path) == 20
    (tmp_path / "last/base/attempt-0/step-00000020/manifest.json").unlink()
    assert found_step(tmp_path) == 60


def test_a_search_for_the_manifest_alone_finds_the_same_one(tmp_path: Path) -> None:
    save(tmp_path, 20)
    (save(tmp_path, 40) / MODEL).write_text("not the model")
    found = lookup.newest(tmp_path, Job("default", "digits"), "base", [MODEL], but="ours", arrays=False)
    assert found is not None
    assert (found.manifest.step, found.contents) == (20, {})


def test_lookup_changes_nothing_on_the_volume(tmp_path: Path) -> None:
    save(tmp_path, 40)
    (save(tmp_path, 60) / MODEL).write_text("not the model")
    before = tree(tmp_path)
    find(tmp_path)
    assert tree(tmp_path) == before


def test_a_volume_may_be_empty_missing_or_full_of_other_things(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert find(tmp_path / "nowhere") is None
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for folder in ("lost+found", "x/base", "y/base/attempt-0/step-00000001", "z/base/attempt-99999999999999999999"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "x/base/attempt-0").touch()
    os.mkfifo(tmp_path / "y/base/attempt-0/step-00000001/manifest.json")
    (tmp_path / "v").mkdir()
    (tmp_path / "v/base").touch()
    assert find(tmp_path) is None
    save(tmp_path, 40)
    assert found_step(tmp_path) == 40


def test_links_are_not_followed(tmp_path: Path) -> None:
    """If links were followed, a link to another job's folder would count as a job, and one to its parent would loop."""
    elsewhere = tmp_path / "elsewhere"
    theirs = save(elsewhere, 40)
    root = tmp_path / "root"
    for place, target in {
        "uid": theirs.parents[2],
        "b/base": theirs.parents[1],
        "c/base/attempt-0": theirs.parent,
        "d/base/attempt-0/step-00000040": theirs,
        "e": root,
    }.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(target)
    assert find(root) is None


def test_an_unreadable_folder_is_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 40)
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle/base").symlink_to("base")
    with caplog.at_level(logging.INFO):
        assert found_step(tmp_path) == 40
    assert str(tmp_path / "circle") in caplog.text


def test_only_the_latest_of_thousands_of_folders_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 80, job_uid="first")
    os.utime(tmp_path / "first", (0, 0))
    for number in range(lookup.MAX_FOLDERS):
        (tmp_path / f"another-{number}").mkdir()
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path) is None
    assert f"the latest {lookup.MAX_FOLDERS} of {lookup.MAX_FOLDERS + 1} folders" in caplog.text
    save(tmp_path, 20, job_uid="last")
    assert found_step(tmp_path) == 20


def test_a_manifest_of_an_old_version_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 40)
    said = msgspec.json.decode((path / "manifest.json").read_bytes())
    for new in ("jobNamespace", "jobName", "written", "layout", "basis"):
        del said[new]
    (path / "manifest.json").write_bytes(msgspec.json.encode(said))
    assert store.verify(path).step == 40
    assert find(tmp_path) is None
