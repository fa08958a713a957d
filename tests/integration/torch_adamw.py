"""PyTorch's AdamW on given gradients, for test_adamw.py; run by an interpreter that has torch, imports nothing of ours.

python torch_adamw.py FILE: reads inputs.npz of that folder and writes outputs.npz.
"""

import sys
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]


def main(folder: Path) -> None:
    """Update `weight` and `bias` by each row of `gradients` at the step's rate; only the weight decays."""
    given = np.load(folder / "inputs.npz")
    weights = [torch.tensor(given[name], requires_grad=True) for name in ("weight", "bias")]
    beta1, beta2, epsilon, decay = (float(number) for number in given["settings"])
    groups = [{"params": [weights[0]], "weight_decay": decay}, {"params": [weights[1]], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(beta1, beta2), eps=epsilon)
    found = []
    for gradient, rate in zip(given["gradients"], given["rates"], strict=True):
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        place = weights[0].numel()
        weights[0].grad = torch.tensor(gradient[:place]).reshape(weights[0].shape)
        weights[1].grad = torch.tensor(gradient[place:])
        optimizer.step()
        found.append(np.concatenate([weight.detach().numpy().reshape(-1) for weight in weights]))
    np.savez(folder / "outputs.npz", steps=np.stack(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
