"""PyTorch's counterpart of our_worker, run by the system's Python, which has torchvision; imports nothing of ours.

Run as: python3 torch_worker.py train|infer SETTING NETWORK CHANNELS SIZE BATCH

SETTING is `default`, or one or both of `channels_last` and `script` with a + between them. `script` is
torch.jit.script, for inferences followed by torch.jit.optimize_for_inference, which folds batch normalization into the
convolutions and gives the weights oneDNN's layout.
"""

import os
import sys
import time
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torchvision  # type: ignore[import-not-found, unused-ignore]
from torch import nn  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional  # type: ignore[import-not-found, unused-ignore]
from torchvision.models.resnet import Bottleneck, ResNet  # type: ignore[import-not-found, unused-ignore]

# The first runs of a script are profiled, the next one is compiled.
WARM_UPS = 4


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """He et al. 2015, §4.2, with option A shortcuts."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))
        return functional.relu(y + x)


class Mean(nn.Module):  # type: ignore[misc, unused-ignore]
    """(n, c, h, w) -> (n, c)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Over the pixels."""
        return x.mean((2, 3))


def resnet20(channels: int) -> nn.Module:
    """The same layers as our resnet20."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for outputs in (16, 32, 64):
        for k in range(3):
            layers.append(Block(inputs, outputs, 2 if k == 0 and outputs > 16 else 1))
            inputs = outputs
    return nn.Sequential(*layers, Mean(), nn.Linear(64, 10))


class Squeezing(Bottleneck):  # type: ignore[misc, unused-ignore]
    """A bottleneck with squeeze and excitation (Hu et al. 2018), as in timm's seresnet50."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        channels = self.conv3.out_channels
        self.fc1 = nn.Conv2d(channels, max(8, channels // 16), 1)
        self.fc2 = nn.Conv2d(max(8, channels // 16), channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) -> (n, 4 x width, h / stride, w / stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y = y * torch.sigmoid(self.fc2(functional.relu(self.fc1(y.mean((2, 3), keepdim=True)))))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(y + x)


def build(name: str, channels: int) -> nn.Module:
    """The same layers as our network of that name, for 10 classes."""
    if name == "resnet20":
        return resnet20(channels)
    if name == "seresnet50":
        return ResNet(Squeezing, [3, 4, 6, 3], num_classes=10)
    return torchvision.models.__dict__[name](num_classes=10)


def main(what: str, setting: str, name: str, channels: int, size: int, batch: int) -> None:
    """Warm up, report ready, then answer each input line."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    network = build(name, channels).train(what == "train")
    images, labels = torch.randn(batch, channels, size, size), torch.randint(0, 10, (batch,))
    if "channels_last" in setting:
        network = network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    if "script" in setting:
        network = torch.jit.script(network)
        network = network if what == "train" else torch.jit.optimize_for_inference(network)

    def once() -> None:
        if what == "infer":
            with torch.no_grad():
                network(images)
            return
        optimizer.zero_grad()
        functional.cross_entropy(network(images), labels, label_smoothing=0.1).backward()
        optimizer.step()

    for _ in range(WARM_UPS):
        once()
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            once()
        print((time.perf_counter() - started) / int(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
