"""PyTorch reference networks for test_model.py and test_conversion.py; must not import our packages.

Run by an interpreter that has torchvision:
  python torchvision_reference.py make FOLDER IMAGE_SIZE NAME   its weights.pth, and reference.npz with what it computes
  python torchvision_reference.py run FOLDER WEIGHTS NAME       run.npz: what it computes with these safetensors

seresnet50 is built here upon torchvision's resnet50 by Hu et al. (2018), and ResNet-D upon its others by He et al.
(2019), with the names of timm 1.0.31: timm is no dependency for these networks. (Its own seresnet50, looked at once,
has the same outputs as ours to 8e-7.)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch  # type: ignore[import-not-found, unused-ignore]
import torchvision  # type: ignore[import-not-found, unused-ignore]
from torch import nn  # type: ignore[import-not-found, unused-ignore]
from torchvision.models import resnet  # type: ignore[import-not-found, unused-ignore]


class SqueezeExcitation(nn.Module):  # type: ignore[misc, unused-ignore]
    """Squeeze-and-excitation with the paper's reduction of 16, as 1x1 convolutions with biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, channels // 16, 1), nn.Conv2d(channels // 16, channels, 1)

    def forward(self, x: Any) -> Any:
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.fc2(torch.relu(self.fc1(means))))


class SqueezingBottleneck(resnet.Bottleneck):  # type: ignore[misc, unused-ignore]
    """torchvision's bottleneck with squeeze-and-excitation on its branch."""

    def __init__(self, inplanes: int, planes: int, *rest: Any, **others: Any) -> None:
        super().__init__(inplanes, planes, *rest, **others)
        self.se = SqueezeExcitation(4 * planes)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.se(self.bn3(self.conv3(y)))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def network(name: str) -> nn.Module:
    if name == "seresnet50":
        return resnet.ResNet(SqueezingBottleneck, [3, 4, 6, 3])
    if name.endswith("d") and not name.startswith("resnext"):
        return deepened(torchvision.models.__dict__[name.removesuffix("d")]())
    return torchvision.models.__dict__[name]()


def deepened(made: nn.Module) -> nn.Module:
    """ResNet-D: a stem of three convolutions, and the mean of 2x2 pixels before a shortcut's convolution."""

    def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)

    between = (nn.BatchNorm2d(32), nn.ReLU(), convolution(32, 32), nn.BatchNorm2d(32), nn.ReLU())
    made.conv1 = nn.Sequential(convolution(3, 32, 2), *between, convolution(32, 64))
    for block in made.modules():
        if isinstance(block, resnet.BasicBlock | resnet.Bottleneck) and block.downsample is not None:
            old, norm = block.downsample
            mean = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False) if block.stride > 1 else nn.Identity()
            plain = nn.Conv2d(old.in_channels, old.out_channels, 1, bias=False)
            block.downsample = nn.Sequential(mean, plain, norm)
    return made


def make(folder: Path, size: int, name: str) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, size, size)
    made = network(name)
    randomise(made)
    calibrate(made, size)
    torch.save(made.state_dict(), folder / "weights.pth")
    arrays = {"images": images.numpy()}
    with torch.no_grad():
        arrays["output"] = made(images).numpy()
        made.train()
        made(images)
    arrays |= {f"updated/{key}": value for key, value in state(made).items() if ".running_" in key}
    np.savez(folder / "reference.npz", **arrays)


def run(folder: Path, weights: Path, name: str) -> None:
    made = network(name)
    made.load_state_dict(safetensors(weights), strict=True)
    made.eval()
    with np.load(folder / "images.npz") as arrays, torch.no_grad():
        np.savez(folder / "run.npz", output=made(torch.from_numpy(arrays["images"])).numpy())


def safetensors(path: Path) -> dict[str, Any]:
    """Write safetensors by the format's description; Debian has no package of it."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for key, entry in json.loads(data[8:start]).items():
        if key != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"F32": np.float32, "I64": np.int64}[entry["dtype"]]
            numbers = np.frombuffer(data[start + begin : start + end], kind).reshape(entry["shape"])
            tensors[key] = torch.from_numpy(numbers.copy())
    return tensors


def state(made: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Copies of everything but the batch counters, which MindSpore does not have."""
    return {key: value.numpy().copy() for key, value in made.state_dict().items() if "num_batches" not in key}


def randomise(made: nn.Module) -> None:
    """Move BN's scale and shift away from 1 and 0, which would hide a mix-up."""
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)


def calibrate(made: nn.Module, size: int) -> None:
    """Set running statistics from random images; with the initial ones, outputs of 150 layers overflow."""
    made.train()
    with torch.no_grad():
        for _ in range(3):
            made(torch.randn(4, 3, size, size))
    made.eval()


if __name__ == "__main__":
    torch.set_num_threads(2)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        run(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
