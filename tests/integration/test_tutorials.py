"""The tutorials: every command in them works, in their order, and the results are there."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from resnetboost_trainer.models import arch, key_map
from support import torchfiles
from support.pages import follow, shell_blocks

pytestmark = [pytest.mark.slow, pytest.mark.long]

# Done already: these tests run in what it makes.
SET_UP = "make setup\nsource .venv/bin/activate\n"


def test_own_images_are_trained_evaluated_and_exported(tmp_path: Path) -> None:
    said = follow(shell_blocks("docs/tutorial-own-images.md", without=SET_UP), tmp_path)
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
    images = next(block for block in shell_blocks("docs/tutorial-own-images.md") if "load_digits" in block)
    said = follow([images, *shell_blocks("docs/tutorial-from-pytorch.md", without=SET_UP)], tmp_path)
    assert "resnet18" in said
    assert "fine-tuned is complete" in said
    back = load_file(tmp_path / "for-pytorch.safetensors")
    kept = [key for key in theirs if not key.startswith("fc.")]
    assert [back[key].shape for key in kept] == [theirs[key].shape for key in kept]
    assert back["fc.weight"].shape == (10, 512)
    assert np.array_equal(back["layer1.0.conv1.weight"], theirs["layer1.0.conv1.weight"]), "frozen"
    assert not np.array_equal(back["layer4.0.conv1.weight"], theirs["layer4.0.conv1.weight"])


def test_the_job_for_ascend_is_valid_and_its_pod_asks_for_a_device(tmp_path: Path) -> None:
    """The rest of that page needs a device."""
    follow(shell_blocks("docs/tutorial-ascend.md"), tmp_path)
    objects = list(yaml.safe_load_all((tmp_path / "objects.yaml").read_text()))
    (pod,) = [item for item in objects if item["kind"] == "Pod"]
    ours = yaml.safe_load((tmp_path / "examine.yaml").read_text())
    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    (limits, theirs) = (of["spec"]["containers"][0]["resources"]["limits"] for of in (pod, ours))
    assert limits["huawei.com/Ascend910"] == theirs["huawei.com/Ascend910"] == 1
    assert {mount["mountPath"] for mount in ours["spec"]["containers"][0]["volumeMounts"]} <= mounts
