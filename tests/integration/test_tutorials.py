"""The tutorials: every command in them works, in their order, and the results are there."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from resnetboost_trainer.models import arch, key_map
from support import torchfiles

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
# Done already: these tests run in what it makes.
SET_UP = "make setup\nsource .venv/bin/activate\n"


def blocks(page: str) -> list[str]:
    """A page's shell blocks but for the set-up, in their order."""
    found = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.S | re.M)
    assert SET_UP in found, "the page begins in another way than its readers' test"
    return [block for block in found if block != SET_UP]


def follow(blocks: Sequence[str], folder: Path) -> str:
    """Run the blocks one after another, as a reader would paste them. Returns what they print."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "set -euo pipefail\n" + "".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_images_are_trained_evaluated_and_exported(tmp_path: Path) -> None:
    said = follow(blocks("tutorial-own-images.md"), tmp_path)
    top1 = re.search(r"my-images is complete: top-1 ([\d.]+) %", said)
    assert top1 is not None
    assert float(top1[1]) > 90, "a reader would not be content"
    assert said.count("digit-3") > 5
    assert (tmp_path / "runs/my-images/report.html").exists()
    assert (tmp_path / "my-images.onnx").stat().st_size > 100_000
    assert "top-1" in (tmp_path / "my-images.onnx.md").read_text().lower()


def test_a_network_of_pytorch_is_fine_tuned_and_taken_back(tmp_path: Path) -> None:
    """Its weights are drawn here, in the format of torch.save; the images are those of the first tutorial."""
    generator = np.random.default_rng(0)
    shapes = arch.parameters("resnet18", 1000, 3)
    drawn = {key: generator.normal(0, 0.05, shape).astype(np.float32) for key, shape in shapes.items()}
    variances = {
        key: np.ones(shape, np.float32) for key, shape in shapes.items() if key.endswith(("gamma", "variance"))
    }
    theirs = {key_map.torch(key): array for key, array in (drawn | variances).items()}
    torchfiles.write(tmp_path / "resnet18.pth", torchfiles.state_dict(theirs))
    images = next(block for block in blocks("tutorial-own-images.md") if "load_digits" in block)
    said = follow([images, *blocks("tutorial-from-pytorch.md")], tmp_path)
    assert "resnet18" in said
    assert "fine-tuned is complete" in said
    back = load_file(tmp_path / "for-pytorch.safetensors")
    kept = [key for key in theirs if not key.startswith("fc.")]
    assert [back[key].shape for key in kept] == [theirs[key].shape for key in kept]
    assert back["fc.weight"].shape == (10, 512)
    assert np.array_equal(back["layer1.0.conv1.weight"], theirs["layer1.0.conv1.weight"]), "frozen"
    assert not np.array_equal(back["layer4.0.conv1.weight"], theirs["layer4.0.conv1.weight"])
