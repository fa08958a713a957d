"""What every example becomes on Kubernetes, to the letter. After a wanted change: `make golden`, and read the diff."""

import os
from pathlib import Path

import pytest

from resnetboost_operator import yamltext
from resnetboost_operator.terminal import firstattempt, loadjob

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_becomes_these_objects(example: Path) -> None:
    text = yamltext.dump_all(firstattempt.objects(loadjob.load(example)))
    golden = Path(__file__).with_name(f"{example.stem}.yaml")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "run `make golden` if this is meant, and read the diff"
