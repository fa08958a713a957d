"""Contents of a stage's config file as the operator writes it, for tests to change."""

from typing import Any

MODEL: dict[str, Any] = {
    "name": "resnet20",
    "numClasses": 10,
    "init": {"convolution": "HeNormal", "head": "Uniform", "zeroGamma": False},
}

GOOD: dict[str, Any] = {
    "job": {"name": "digits", "namespace": "default", "uid": "uid"},
    "stage": "base",
    "attempt": 0,
    "seed": 0,
    "device": {"type": "CPU"},
    "model": MODEL,
    "dataset": {"name": "digits"},
    "algorithm": "Momentum",
    "epochs": 3,
    "localBatchSize": 32,
    "accumulationSteps": 1,
    "labelSmoothing": 0.1,
    "precision": "Float32",
    "lossScale": 1,
    "evaluateEveryEpochs": 1,
    "learningRate": {"schedule": "Cosine", "peak": 0.1, "final": 0, "warmupEpochs": 1, "gamma": 0.1, "power": 2},
    "momentum": {"momentum": 0.9, "weightDecay": 1e-4, "nesterov": False},
    "checkpoint": {"everySteps": 20, "keep": 3, "resume": "Never"},
}

# Additional settings of a THOR stage.
THOR: dict[str, Any] = {
    "frequency": 10,
    "blockSize": 128,
    "damping": {"initial": 0.1, "decay": 0.5, "decayEpochs": 10, "split": "Pi"},
    "traceRule": {"updateAbove": 0.3, "stopBelow": 0, "smoothing": 0.8},
}
