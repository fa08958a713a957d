"""Writes weights and outputs of one of torchvision's networks, for test_model.py; it must not import anything of ours.

Run by an interpreter that has torchvision: python torchvision_reference.py FILE.npz IMAGE_SIZE NAME
"""

import sys

import numpy as np
import numpy.typing as npt
import torch  # type: ignore[import-not-found, unused-ignore]
import torchvision  # type: ignore[import-not-found, unused-ignore]


def main(path: str, size: int, name: str) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    images = torch.randn(4, 3, size, size)
    network = torchvision.models.__dict__[name]()
    randomise(network)
    calibrate(network, size)
    arrays = {"images": images.numpy()}
    arrays |= {f"weights/{key}": value for key, value in state(network).items()}
    with torch.no_grad():
        arrays["output"] = network(images).numpy()
        network.train()
        network(images)
    arrays |= {f"updated/{key}": value for key, value in state(network).items() if ".running_" in key}
    np.savez(path, **arrays)


def state(network: torch.nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Copies of everything but the batch counters, which MindSpore does not have."""
    return {key: value.numpy().copy() for key, value in network.state_dict().items() if "num_batches" not in key}


def randomise(network: torch.nn.Module) -> None:
    """BN's scale and shift away from 1 and 0, where a mix-up would not show."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.2)


def calibrate(network: torch.nn.Module, size: int) -> None:
    """Running statistics of some random images; with the initial ones, outputs of 150 layers grow beyond measure."""
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(4, 3, size, size))
    network.eval()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
