"""Notes on valid jobs: settings without the effect they seem to have are reported, and no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnetboost_operator.validation import data_notes, jobfile, schema
from resnetboost_operator.validation.notes import notes, of_cluster

CORPUS = Path(__file__).parents[1] / "corpus" / "good"
EXAMPLES = Path(__file__).parents[2] / "examples"


def told(stage: dict[str, Any], **spec: Any) -> list[str]:
    job = schema.defaulted(jobfile.load(CORPUS / "minimal.yaml"))
    written = {
        **job["spec"],
        "checkpoint": {"claimName": "kept"},
        **spec,
        "stages": [{**job["spec"]["stages"][0], **stage}],
    }
    assert schema.check({**job, "spec": written}) == []
    spec = schema.defaulted({**job, "spec": written})["spec"]
    return [*notes(spec), *of_cluster(spec)]


LOST = (
    "spec.checkpoint.claimName: without it on Kubernetes checkpoints are lost with their pods, and every restart or "
    "suspension starts over at step 0; add the name of a PersistentVolumeClaim, or a checkpoint.url"
)
ALONE = "spec.stages[0].allReduceFusion: one device has no gradients to sum; leave it out, or use more devices"
UNFUSED = "spec.jitLevel: O1 fuses nothing on chip 910A; leave it out"
TWO = {"device": {"count": 2}}
OF_910A = {"type": "Ascend", "chip": "910A"}

RESNET20 = {"name": "resnet20", "numClasses": 10}
MILESTONES = "spec.stages[0].learningRate.milestones"
NEVER = "the end of the stage's 10 epochs, so the rate never drops there; give epochs, not steps"
FROZEN = (
    "spec.model.freeze: stem, layer1 would keep the weights drawn at random, as nothing has trained them;"
    " give model.weights, or leave freeze out"
)
CLASSES = (
    "spec.model.numClasses: {0} classes, and {1} has {2}: the others are never learnt;"
    " use {2}, or more only to continue with other data"
)


def step(*milestones: float, schedule: str = "Step") -> dict[str, Any]:
    return {"learningRate": {"schedule": schedule, "peak": 0.1, "milestones": list(milestones)}}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "half without a scale, which gets one": ({"precision": "Float16"}, {}, []),
    "half of another algorithm without a scale": ({"precision": "Float16", "algorithm": "THOR"}, {}, []),
    "half with a scale": ({"precision": "Float16", "lossScale": 128}, {}, []),
    "half with a dynamic scale": ({"precision": "Float16", "dynamicLossScale": {}}, {}, []),
    "fewer devices than divide": (
        {},
        {"device": {"count": 8, "minCount": 5}},
        ["spec.device.minCount: no number from 5 to 7 divides the 8 devices; use 4 or less"],
    ),
    "fewer devices than fill their nodes": (
        {},
        {"device": {"count": 8, "perNode": 8, "minCount": 2}},
        ["spec.device.minCount: no number from 2 to 7 divides the 8 devices; leave it out"],
    ),
    "fewer devices": ({}, {"device": {"count": 8, "perNode": 2, "minCount": 3}}, []),
    "checkpoints that go with their pods": ({}, {"checkpoint": {}}, [LOST]),
    "buckets of one device": ({"allReduceFusion": {}}, {}, [ALONE]),
    "buckets of one device of two": ({"allReduceFusion": {}, "deviceCount": 1}, TWO, [ALONE]),
    "buckets of two devices": ({"allReduceFusion": {}}, TWO, []),
    "steps for epochs": (step(30000, 50000), {}, [f"{MILESTONES}: 30000, 50000 are not before {NEVER}"]),
    "a milestone at the end": (step(5, 10), {}, [f"{MILESTONES}: 10 is not before {NEVER}"]),
    "milestones within the stage": (step(5, 9.5), {}, []),
    "a milestone at the end of a schedule that looks ahead": (step(5, 10, schedule="Polynomial"), {}, []),
    "frozen weights drawn at random": ({}, {"model": RESNET20 | {"freeze": ["stem", "layer1"]}}, [FROZEN]),
    "frozen weights of a file": ({}, {"model": RESNET20 | {"freeze": ["stem"], "weights": {"path": "/w"}}}, []),
    "frozen weights of an earlier job": (
        {},
        {"model": RESNET20 | {"freeze": ["stem"]}, "checkpoint": {"resume": "IfPresent", "claimName": "kept"}},
        [],
    ),
    "more classes than digits": ({}, {"model": RESNET20 | {"numClasses": 12}}, [CLASSES.format(12, "digits", 10)]),
    "as many classes as CIFAR-100": (
        {},
        {"model": RESNET20 | {"numClasses": 100}, "dataset": {"name": "CIFAR100", "path": "/data"}},
        [],
    ),
    "graph kernels of a 910A": ({}, {"device": OF_910A, "jitLevel": "O1"}, [UNFUSED]),
    "no graph kernels of a 910A": ({}, {"device": OF_910A, "jitLevel": "O0"}, []),
    "graph kernels of another chip": ({}, {"device": {"type": "Ascend", "chip": "910B"}, "jitLevel": "O1"}, []),
}


@pytest.mark.parametrize(("stage", "spec", "sentences"), CASES.values(), ids=CASES.keys())
def test_ineffective_settings_are_noted(stage: dict[str, Any], spec: dict[str, Any], sentences: list[str]) -> None:
    assert told(stage, **spec) == sentences


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_have_no_notes_but_missing_checkpoints(path: Path) -> None:
    says_so = "# claimName: digits # " in path.read_text()
    spec = schema.defaulted(jobfile.load(path))["spec"]
    assert [*notes(spec), *of_cluster(spec)] == ([LOST] if says_so else [])


def of_data(name: str, path: Path, classes: int) -> list[str]:
    job = schema.defaulted(jobfile.load(CORPUS / "minimal.yaml"))
    dataset = {"name": name, "path": str(path)}
    model = {**job["spec"]["model"], "numClasses": classes}
    return list(data_notes.of({**job["spec"], "model": model, "dataset": dataset}))


@pytest.mark.parametrize("kind", ["<i8", ">i4", "|u1"])
def test_labels_of_a_local_file_are_counted(kind: str, tmp_path: Path) -> None:
    path, labels = tmp_path / "images.npz", np.array([0, 6, 3], kind)
    np.savez_compressed(path, x_train=np.zeros((3, 8, 8)), y_train=labels[:2], x_test=0, y_test=labels[2:])
    assert of_data("npz", path, 7) == []
    assert of_data("npz", path, 100) == [CLASSES.format(100, path, 7)]
    path.write_bytes(path.read_bytes()[:200])  # the trainer reports this error
    assert of_data("npz", path, 100) == of_data("npz", tmp_path / "gone", 100) == []


def test_classes_beside_mindrecord_files_are_counted(tmp_path: Path) -> None:
    assert of_data("MindRecord", tmp_path, 3) == []
    (tmp_path / "classes.txt").write_text("a cat\na dog\n")
    assert of_data("MindRecord", tmp_path, 3) == [CLASSES.format(3, tmp_path, 2)]
