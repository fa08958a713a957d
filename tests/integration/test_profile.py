"""`resnetboost profile` end to end: real ranks, MindSpore's profiler, tables, a picture and JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from beds.operator.wait import eventually
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models import arch
from support import forkserver

EXAMPLES = Path(__file__).parents[2] / "examples"
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
STEPS = 2


def command(folder: Path, *options: str, job: str = "digits") -> list[str]:
    return [RESNETBOOST, "profile", str(EXAMPLES / f"{job}.yaml"), "--out", str(folder), *options]


def profile(folder: Path, *options: str, job: str = "digits") -> subprocess.CompletedProcess[str]:
    words = command(folder, *options, job=job)
    forked = forkserver.environment(os.environ)
    return subprocess.run(words, env=forked, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("profile")
    (made / "config.yaml").write_text("mine")
    return made


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    done = profile(folder, "--ranks", "2", "--steps", str(STEPS), "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_file_of_the_user_stays(measured: dict[str, Any], folder: Path) -> None:
    assert (folder / "config.yaml").read_text() == "mine"


@pytest.mark.slow
def test_phases_add_up_to_a_step(measured: dict[str, Any]) -> None:
    times = measured["times"]
    assert [part["name"] for part in times["parts"]] == ["data", "forward", "backward", "reduction", "optimizer"]
    together = sum(part["seconds"]["mean"] for part in times["parts"])
    assert 0 < together <= times["stepSeconds"]["mean"]
    assert measured["imagesPerStep"] == 2 * 32 and measured["steps"] == STEPS


@pytest.mark.slow
def test_operators_are_where_they_belong_and_as_many_as_the_network_has(measured: dict[str, Any]) -> None:
    operators = measured["times"]["operators"]
    calls = {(found["part"], found["name"]): 0.0 for found in operators}
    for found in operators:
        calls[found["part"], found["name"]] += found["calls"]
    assert calls["reduction", "AllReduce"] == 1
    assert calls["forward", "SoftmaxCrossEntropyWithLogits"] == 1
    if library.usable() is not None:
        trunk = [(part, calls[part, name]) for part, name in calls if name.startswith("Trunk")]
        assert sorted(trunk) == [("backward", 1), ("forward", 1)]
    for part in measured["times"]["parts"]:
        assert part["inOperators"] is None or 0 < part["inOperators"] <= 1
    assert not any(name == "Custom" for _, name in calls)


@pytest.mark.slow
def test_layers_within_one_operator_have_times_of_their_own(measured: dict[str, Any]) -> None:
    layers = {layer["name"]: {work: layer[work] for work in layer if work != "name"} for layer in measured["layers"]}
    if library.usable() is None:
        assert not layers
        return
    assert list(layers) == [row.name for row in arch.topology("resnet20", 1).convolutions]
    assert layers["conv1"].pop("imagesGradient") == 0, "a stem needs none"
    assert all(seconds > 0 for layer in layers.values() for seconds in layer.values())
    parts = {part["name"]: part["seconds"]["mean"] for part in measured["times"]["parts"]}
    together = sum(sum(layer.values()) for layer in layers.values())
    assert together < parts["forward"] + parts["backward"]


@pytest.mark.slow
def test_a_picture_and_the_profilers_own_files_are_kept(measured: dict[str, Any], folder: Path) -> None:
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "profile.json").read_text()) == measured
    assert any((folder / "mindspore").iterdir())


def test_what_cannot_be_profiled_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for options, job, words in (
        (("--stage", "last"), "digits", "--stage: last is no stage of the job; it has base"),
        (("--stage", "fine"), "digits-two-stage", "PCA trains on snapshots of another stage"),
        (("--ranks", "1000"), "digits", "--ranks: 1000 need more memory than this machine has; use at most"),
        (("--set", "device.type=Ascend"), "digits", "device.type: Ascend: this machine has none"),
    ):
        done = profile(tmp_path, *options, job=job)
        assert (done.returncode, len(done.stderr.splitlines())) == (10, 1), done.stderr
        assert words in done.stderr


def test_ctrl_c_ends_it_with_a_message_and_leaves_no_process(tmp_path: Path) -> None:
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command(tmp_path, "--steps", "100000"), **pipe)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := children.read_text().split()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert error.splitlines() == ["resnetboost: stopped; nothing was measured"]
    # A child that was forked the moment before ends with its parent, which takes the kernel a moment.
    eventually(
        lambda: [child for child in found if os.path.exists(f"/proc/{child}")], lambda left: not left, "no child"
    )
