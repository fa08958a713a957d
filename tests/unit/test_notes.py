"""Settings of a right job that do not do what they look like are told, and no others are."""

from pathlib import Path
from typing import Any

import pytest

from resnetboost_operator.validation import jobfile, schema
from resnetboost_operator.validation.notes import notes

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
    return list(notes(schema.defaulted({**job, "spec": written})["spec"]))


LOST = (
    "spec.checkpoint.claimName: without it on Kubernetes checkpoints go with their pods, and every restart and "
    "suspension begins again at step 0; add the name of a PersistentVolumeClaim"
)
ALONE = "spec.stages[0].allReduceFusion: one device has no gradients to sum; leave it out, or use more devices"
UNFUSED = "spec.jitLevel: O1 fuses nothing on chip 910A; leave it out"
TWO = {"device": {"count": 2}}
OF_910A = {"type": "Ascend", "chip": "910A"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "half without a scale, which gets one": ({"precision": "Float16"}, {}, []),
    "half of another algorithm without a scale": ({"precision": "Float16", "algorithm": "THOR"}, {}, []),
    "half with a scale": ({"precision": "Float16", "lossScale": 128}, {}, []),
    "half with a dynamic scale": ({"precision": "Float16", "dynamicLossScale": {}}, {}, []),
    "checkpoints that go with their pods": ({}, {"checkpoint": {}}, [LOST]),
    "buckets of one device": ({"allReduceFusion": {}}, {}, [ALONE]),
    "buckets of one device of two": ({"allReduceFusion": {}, "deviceCount": 1}, TWO, [ALONE]),
    "buckets of two devices": ({"allReduceFusion": {}}, TWO, []),
    "graph kernels of a 910A": ({}, {"device": OF_910A, "jitLevel": "O1"}, [UNFUSED]),
    "no graph kernels of a 910A": ({}, {"device": OF_910A, "jitLevel": "O0"}, []),
    "graph kernels of another chip": ({}, {"device": {"type": "Ascend", "chip": "910B"}, "jitLevel": "O1"}, []),
}


@pytest.mark.parametrize(("stage", "spec", "sentences"), CASES.values(), ids=CASES.keys())
def test_what_does_not_help_is_noted(stage: dict[str, Any], spec: dict[str, Any], sentences: list[str]) -> None:
    assert told(stage, **spec) == sentences


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_need_no_notes_but_that_they_keep_nothing_where_they_say_so(path: Path) -> None:
    says_so = "# claimName: digits # on Kubernetes: a PersistentVolumeClaim. Without one" in path.read_text()
    assert list(notes(schema.defaulted(jobfile.load(path))["spec"])) == ([LOST] if says_so else [])
