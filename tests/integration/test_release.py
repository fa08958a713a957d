"""`make release`: the same bytes from any clone, and wheels and a chart that work without the tree."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from resnetboost_api import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"


def call(*words: str | Path, folder: Path, seconds: float = 300) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def release(clone: Path) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is built from a commit, and this tree is no clone")
    call("git", "clone", "--quiet", ROOT, clone, folder=ROOT)
    call(sys.executable, clone / "scripts" / "release.py", folder=clone)
    return clone / "build" / "release"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release(tmp_path_factory.mktemp("released") / "clone")


def test_two_clones_build_the_same_bytes(released: Path, tmp_path: Path) -> None:
    other = release(tmp_path / "another place" / "clone")
    call("sha256sum", "--check", "--strict", released / "SHA256SUMS", folder=other)
    assert sorted(path.name for path in other.iterdir()) == sorted(path.name for path in released.iterdir())


def test_changes_that_are_not_committed_are_refused(released: Path) -> None:
    clone = released.parents[1]
    change = clone / "README.md"
    before = change.read_text()
    change.write_text(before + "changed\n")
    done = subprocess.run(
        [sys.executable, clone / "scripts" / "release.py"], cwd=clone, capture_output=True, text=True, check=False
    )
    change.write_text(before)
    assert done.returncode == 1
    assert "commit these changes first" in done.stderr
    assert "README.md" in done.stderr


def test_a_bill_lists_every_locked_package(released: Path) -> None:
    for name in ("operator", "trainer"):
        bill = json.loads((released / f"resnetboost-{name}-{__version__}.cdx.json").read_text())
        lock = (ROOT / "images" / "locks" / f"{name}.lock").read_text()
        locked = {line.partition("==")[0] for line in lock.splitlines() if "==" in line.partition(" ")[0]}
        assert {component["name"] for component in bill["components"]} == locked
        assert bill["metadata"]["component"]["version"] == __version__


def test_the_chart_is_a_chart(released: Path) -> None:
    with tarfile.open(released / f"resnetboost-{__version__}.tgz") as tar:
        packed = {entry.name: entry for entry in tar}
        chart = tar.extractfile(packed["resnetboost/Chart.yaml"])
        assert chart is not None
        assert yaml.safe_load(chart)["version"] == __version__
    tracked = call("git", "ls-files", "charts/resnetboost", folder=ROOT).split()
    assert sorted(packed) == sorted(name.removeprefix("charts/") for name in tracked if "/ci/" not in name)


@pytest.mark.long
def test_wheels_train_in_a_clean_environment_without_the_tree(released: Path, tmp_path: Path) -> None:
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    call(UV, "venv", "--quiet", "--python", sys.executable, environment, folder=work)
    python = environment / "bin" / "python"
    locks = [word for name in ("operator", "trainer") for word in ("-r", ROOT / "images" / "locks" / f"{name}.lock")]
    call(UV, "pip", "install", "--quiet", "--require-hashes", "--python", python, *locks, folder=work)
    call(UV, "pip", "install", "--quiet", "--no-deps", "--python", python, *released.glob("*.whl"), folder=work)
    (work / "job.yaml").write_text((ROOT / "examples" / "digits.yaml").read_text())
    sets = ("--set", "stages[0].epochs=2", "--set", "device.count=1")
    said = call(environment / "bin" / "resnetboost", "run", "job.yaml", *sets, folder=work)
    assert "digits is complete" in said
    assert list((work / "runs" / "digits" / "checkpoints").rglob("model.safetensors"))
