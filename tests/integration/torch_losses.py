"""PyTorch's losses and gradients, for test_losses.py; run by an interpreter that has torch, imports nothing of ours.

python torch_losses.py FOLDER: reads inputs.npz (logits, teacher, labels, shares, weights) and writes outputs.npz.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional  # type: ignore[import-not-found, unused-ignore]

SMOOTHINGS = (0.0, 0.1)
THRESHOLDS = (None, 0.2)
TEMPERED = ((1.0, 1.0), (4.0, 0.5), (0.5, 0.9))  # temperature, alpha


def timm(logits: Any, target: Any, smoothing: float, threshold: float | None, weights: Any) -> Any:
    """timm's BinaryCrossEntropy; targets of mixup come smoothed from its Mixup."""
    classes = logits.shape[1]
    if target.ndim == 1:
        target = functional.one_hot(target.long(), classes).float()
    target = target * (1 - smoothing) + smoothing / classes
    if threshold is not None:
        target = target.gt(threshold).float()
    return functional.binary_cross_entropy_with_logits(logits, target, weight=weights)


def hinton(logits: Any, teacher: Any, target: Any, temperature: float, alpha: float) -> Any:
    """The usual PyTorch lines for knowledge distillation."""
    soft = functional.kl_div(
        functional.log_softmax(logits / temperature, 1),
        functional.softmax(teacher / temperature, 1),
        reduction="batchmean",
    )
    hard = functional.cross_entropy(logits, target.long() if target.ndim == 1 else target, label_smoothing=0.1)
    return (1 - alpha) * hard + alpha * temperature**2 * soft


def main(folder: Path) -> None:
    given = {name: torch.tensor(values) for name, values in np.load(folder / "inputs.npz").items()}
    found: dict[str, Any] = {}

    def keep(name: str, loss: Any) -> None:
        logits = given["logits"].clone().requires_grad_()
        value = loss(logits)
        value.backward()
        found[f"{name}/loss"], found[f"{name}/gradient"] = value.detach().numpy(), logits.grad.numpy()

    for kind, smoothing in itertools.product(("labels", "shares"), SMOOTHINGS):
        target = given[kind]
        whole = target.long() if target.ndim == 1 else target
        keep(
            f"weighted/{kind}/{smoothing}",
            lambda logits, whole=whole, smoothing=smoothing: functional.cross_entropy(
                logits, whole, weight=given["weights"], label_smoothing=smoothing
            ),
        )
        for threshold, weights in itertools.product(THRESHOLDS, (None, given["weights"])):
            keep(
                f"binary/{kind}/{smoothing}/{threshold}/{'equal' if weights is None else 'weighted'}",
                lambda logits, target=target, smoothing=smoothing, threshold=threshold, weights=weights: timm(
                    logits, target, smoothing, threshold, weights
                ),
            )
    for kind, (temperature, alpha) in itertools.product(("labels", "shares"), TEMPERED):
        keep(
            f"distilled/{kind}/{temperature}/{alpha}",
            lambda logits, target=given[kind], temperature=temperature, alpha=alpha: hinton(
                logits, given["teacher"], target, temperature, alpha
            ),
        )
    np.savez(folder / "outputs.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
