"""Building the test bed's programs: found, built once among parallel runs, or an error; a stub stands for Go."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beds.cluster import ClusterError, build
from beds.cluster.ahead import Ahead
from beds.operator.wait import eventually

TESTS = Path(__file__).parents[1]
ETCD, KWOK = "go.etcd.io/etcd/server/v3", "sigs.k8s.io/kwok/cmd/kwok"
# Logs the packages it builds, slowly enough for other runs to wait.
GO = """#!/bin/sh
[ "$1" = build ] || { echo go1.99; exit; }
while [ $# -gt 1 ]; do [ "$1" = -o ] && output=$2; shift; done
echo "$1" >> "$XDG_CACHE_HOME/packages"
sleep 0.3
echo "$1" > "$output"
"""
BUILD = "from beds.cluster import build; print(*build.programs(['etcd', 'kwok']).values())"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the machine's whole PATH, with openssl and without Go."""
    (tmp_path / "openssl").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def test_without_go_nothing_is_built_and_the_reason_is_given(machine: Path) -> None:
    reason = "there is no Go here to build etcd with; install Go, or set KUBEBUILDER_ASSETS to a folder that holds them"
    assert build.unavailable(["etcd"]) == reason
    with pytest.raises(ClusterError, match=re.escape(reason)):
        build.programs(["etcd"])


def test_programs_of_kubebuilder_assets_are_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine))
    (machine / "etcd").touch(mode=0o755)
    assert build.unavailable(["etcd"]) == ""
    assert build.programs(["etcd"]) == {"etcd": machine / "etcd"}
    assert "to build kubectl with" in build.unavailable(["etcd", "kubectl"])


def test_of_parallel_runs_one_builds_for_all(tmp_path: Path) -> None:
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(TESTS),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", BUILD]
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    (paths,) = {run.communicate(timeout=60)[0] for run in runs}
    assert [Path(path).read_text() for path in paths.split()] == [f"{ETCD}\n", f"{KWOK}\n"]
    assert (tmp_path / "packages").read_text() == f"{ETCD}\n{KWOK}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a Go whose programs are the linker's flags."""
    with_flags = GO.replace("[ $# -gt 1 ]; do", '[ $# -gt 1 ]; do [ "$1" = -ldflags ] && flags=$2;')
    (tmp_path / "go").write_text(with_flags.replace('echo "$1" > "$output"', 'echo "$flags" > "$output"'))
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def test_programs_of_two_versions_are_told_their_own(cache: Path) -> None:
    built = build.programs(["kube-scheduler", "kube-scheduler-1.36"])
    versions = [re.findall(r"version\.gitVersion=v(1\.\d+)", path.read_text()) for path in built.values()]
    assert versions == [["1.34"], ["1.36"]]


def test_another_version_of_one_module_leaves_the_programs_of_the_others(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = Path(shutil.copytree(build.MODULES, cache / "modules"))
    monkeypatch.setattr(build, "MODULES", modules)
    names = ["etcd", "kube-scheduler", "kube-scheduler-1.36"]
    build.programs(names)
    pinned = modules / "kubernetes-1.36" / "go.mod"
    pinned.write_text(pinned.read_text().replace("k8s.io/kubernetes v1.36.3", "k8s.io/kubernetes v1.36.4"))
    assert build.missing(names) == ["kube-scheduler-1.36"]


def test_missing_programs_are_built_once_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    build_ahead("etcd", "kwok")
    build_ahead("etcd", "kwok")
    assert (tmp_path / "packages").read_text() == f"{ETCD}\n{KWOK}\n"


def build_ahead(*names: str) -> None:
    ahead = Ahead(names)
    eventually(lambda: ahead.building, lambda building: not building, "the end of the build")
    ahead.close()
    assert build.missing(names) == []


def test_a_closed_build_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").write_text(GO.replace("0.3", "300"))
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    ahead = Ahead(["etcd"])
    eventually((tmp_path / "packages").exists, bool, "the beginning of the build")
    assert ahead.building == ["etcd"]
    ahead.close()
    assert ahead.building == []
    assert build.missing(["etcd"]) == ["etcd"]
