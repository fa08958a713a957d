"""Model cards: content taken from a checkpoint and its folder, with hostile text escaped."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from resnetboost_api.evaluation_details import ClassResult, EvaluationDetails
from resnetboost_trainer.checkpoint import model_card, trained
from resnetboost_trainer.cli import card, export
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.metrics import csv_log
from resnetboost_trainer.models import arch
from support import smallcheckpoints

GREY = Preparation(height=8, width=8, mean=(5.0,), deviation=(2.0,), white=16.0, classes=("zero", "one | two"))


def save(root: Path, step: int, **changes: Any) -> Path:
    shapes = arch.parameters("resnet20", 10, 1)
    weights = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
    given = {"preparation": GREY, "versions": {"mindspore": "2.10.0"}} | changes
    return smallcheckpoints.save(root, step, {"model.safetensors": weights}, **given)


def evaluated(attempt: Path, *rows: tuple[int, float]) -> None:
    """metrics.csv as the trainer writes it, with top-1 accuracy at those steps."""
    told = csv_log.CsvLog(attempt / "metrics.csv")
    for step, top1 in rows:
        told.add(step=step, loss=1.0)
        told.add(step=step, top1=top1, top5=0.999, test_loss=0.25)
    told.close()


def front(text: str) -> Any:
    return yaml.safe_load(text.split("---\n")[1])


def of(path: Path) -> str:
    found = trained.read(path)
    return model_card.text(model_card.facts(found, found.preparation))


def test_stages_stand_in_their_order_with_their_own_last_evaluations(tmp_path: Path) -> None:
    base = save(tmp_path, 44, stage="zz-base", algorithm="Momentum")
    fine = save(tmp_path, 22, stage="fine", attempt=1, algorithm="THOR in blocks of 128")
    evaluated(base.parent, (22, 0.5), (44, 0.9))
    evaluated(fine.parent, (11, 0.92), (22, 0.9512), (33, 0.99))
    text = of(tmp_path)
    stages = front(text)["training"]["stages"]
    assert [(stage["name"], stage["steps"], stage["epochs"]) for stage in stages] == [
        ("zz-base", 44, 2.0),
        ("fine", 22, 1.0),
    ]
    (result,) = front(text)["model-index"][0]["results"]
    assert [metric["value"] for metric in result["metrics"]] == [0.9512, 0.999, 0.25]
    assert result["dataset"]["revision"] == "digits"
    assert "| zz-base | Momentum | 2.0 | 44 | 1 × 64 | 90.00% | 99.90% | 0.2500 |" in text
    assert "| fine | THOR in blocks of 128 | 1.0 | 22 | 1 × 64 | 95.12% | 99.90% | 0.2500 |" in text
    assert front(of(base))["training"]["stages"] == stages[:1]  # later stages did not contribute to it


def test_a_card_has_preprocessing_classes_and_versions(tmp_path: Path) -> None:
    text = of(save(tmp_path, 44))
    assert "Images are grey, 8 x 8 pixels: the whole picture is brought to that size" in text
    assert "(pixel × 0.0627451 − mean) / deviation" in text
    assert "0 zero, 1 one  two" in text
    assert front(text)["versions"] == {"mindspore": "2.10.0"}


def test_names_in_a_checkpoint_cannot_inject_markdown(tmp_path: Path) -> None:
    hostile = "x\n---\nlicense: mine\n# <script>`"
    path = save(tmp_path, 44, job_name=hostile, config={"stage": "````\n# Title"})
    text = of(path)
    assert front(text)["training"]["job"] == "default/x?---?license: mine?# <script>`"
    assert "license" not in front(text)
    assert [line for line in text.splitlines() if line.startswith("# ")] == ["# resnet20, x?---?license: mine?# script"]


def test_a_damaged_history_omits_the_results(tmp_path: Path) -> None:
    path = save(tmp_path, 44)
    (path.parent / "metrics.csv").write_text("step,top1,top5,test_loss\nx,1,1,1\n")
    assert "model-index" not in front(of(path))


def test_averaged_weights_have_their_own_results(tmp_path: Path) -> None:
    path = save(tmp_path, 44)
    (path.parent / "metrics.csv").write_text(
        "step,top1,top5,test_loss,ema_top1,ema_top5,ema_test_loss\n44,0.5,0.6,0.7,0.8,0.9,0.1\n"
    )
    found = trained.read(path)
    for averaged, top1 in ((False, 0.5), (True, 0.8)):
        network = msgspec.structs.replace(found, averaged=averaged)
        (result,) = front(model_card.text(model_card.facts(network, None)))["model-index"][0]["results"]
        assert result["metrics"][0]["value"] == top1


def test_a_checkpoint_that_was_moved_has_a_card_of_its_own_stage(tmp_path: Path) -> None:
    moved = save(tmp_path / "root", 44).rename(tmp_path / "moved")
    assert [stage["name"] for stage in front(of(moved))["training"]["stages"]] == ["base"]


def test_a_reader_that_leaves_ends_a_command_in_silence(tmp_path: Path) -> None:
    save(tmp_path, 44)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "resnetboost_trainer", "card", str(tmp_path)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_export_brings_its_card(tmp_path: Path, capsys: Any) -> None:
    path = save(tmp_path, 44)
    assert export.main([str(path), str(tmp_path / "net.onnx")]) == 0
    text = (tmp_path / "net.onnx.md").read_text()
    assert 'onnxruntime.InferenceSession("net.onnx")' in text
    assert card.main([str(path), str(tmp_path / "card.md")]) == 0
    assert front((tmp_path / "card.md").read_text()) == front(text)
    capsys.readouterr()


def test_an_invalid_export_target_is_an_error(tmp_path: Path, capsys: Any) -> None:
    path = save(tmp_path, 44)
    told = {
        str(tmp_path / "net.bin"): "end it with .onnx or .mindir",
        str(tmp_path / "gone" / "net.onnx"): "there is no folder",
        str(path / "net.onnx"): "it would be inside a checkpoint",
        str(tmp_path / "net.air"): "AIR can only be written by MindSpore on an Ascend device",
    }
    for target, reason in told.items():
        assert export.main([str(path), target]) == 10, target
        assert reason in capsys.readouterr().err
    assert export.main([str(path), str(tmp_path / "net.onnx"), "--format", "MINDIR"]) == 10
    assert "ends with .mindir; use net.mindir" in capsys.readouterr().err


def test_a_file_of_weights_has_a_card_too(tmp_path: Path) -> None:
    file = (save(tmp_path, 44) / "model.safetensors").rename(tmp_path / "weights.safetensors")
    text = of(file)
    assert "How it was trained is not known" in text
    assert front(text)["tags"][2] == "resnet20"
    assert msgspec.json.encode(front(text))


def details(**changes: Any) -> EvaluationDetails:
    found = ClassResult(name="one | two", images=4, recall=0.75, precision=None)
    plain: dict[str, Any] = {"step": 44, "averaged": False, "dataset": "digits", "images": 4, "classes": (found, found)}
    rest: dict[str, Any] = {"confusion": ((0, 0, 3), (0, 1, 1)), "calibration_error": 0.0625, "bins": ()}
    return EvaluationDetails(**plain | rest | changes)


def test_a_recorded_evaluation_by_class_is_shown(tmp_path: Path) -> None:
    path = save(tmp_path, 44)
    evaluated(path.parent, (44, 0.9))
    (path / "evaluation.json").write_bytes(msgspec.json.encode(details()))
    text = of(path)
    assert "Expected calibration error (15 bins): 0.0625." in text
    assert "| one  two | 4 | 75.00% |  |" in text
    assert "Most often confused: one  two for one  two (1)." in text
    (result,) = front(text)["model-index"][0]["results"]
    assert result["metrics"][-1]["value"] == 0.0625
    (path / "evaluation.json").write_bytes(msgspec.json.encode(details(dataset="other")))
    assert "ece" not in str(front(of(path))["model-index"]), "its other figures are of the data set of the training"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", msgspec.json.encode(details(step=22)), msgspec.json.encode(details(confusion=((0, 2, 1),)))],
    ids=["empty", "no details", "of another step", "a class that is not there"],
)
def test_other_files_in_its_place_are_left_out(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path, 44)
    (path / "evaluation.json").write_bytes(content)
    assert "By class" not in of(path)
