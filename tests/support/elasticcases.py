"""The stages that gangs of any size train in the tests; imports no MindSpore."""

from typing import Any

from support import trainerconfig

# Ranks that each training is defined by; an epoch has SAMPLES // (RANKS * LOCAL_BATCH) steps without accumulation.
RANKS, LOCAL_BATCH, SAMPLES = 4, 4, 100

_THOR = trainerconfig.THOR | {"frequency": 2}
_PCA = {"components": 6, "residual": {"momentum": 0.9, "learningRate": 0.01}}
_MIXED = {
    "dataset": {
        "name": "digits",
        "augmentation": {"crop": "Padded", "padding": 1, "mixupAlpha": 0.4, "cutmixAlpha": 1.0},
    }
}
# It overflows at first, and again and again where it has grown.
_DYNAMIC = {"precision": "Float16", "dynamicLossScale": {"initial": 2.0**22, "growthSteps": 2}}
STAGES: dict[str, dict[str, Any]] = {
    "Momentum": {},
    "AdamW, EMA, accumulation": {
        "algorithm": "AdamW",
        "adamw": {},
        "learningRate": {"schedule": "Cosine", "peak": 0.002},
        "clipNorm": 2,
        "accumulationSteps": 2,
        "ema": {"decay": 0.9},
    },
    "LAMB": {"algorithm": "LAMB", "lamb": {}, "learningRate": {"schedule": "Cosine", "peak": 0.02}},
    "THOR": {"algorithm": "THOR", "thor": _THOR},
    "PCA by BFGS": {"algorithm": "PCA", "pca": _PCA | {"solver": "BFGS"}},
    "PCA by SGD, in buckets": {
        "algorithm": "PCA",
        "pca": _PCA | {"solver": "SGD"},
        "allReduceFusion": {"bucketBytes": 65536},
    },
    "LARS, EMA, mixup": {
        "learningRate": {"schedule": "Cosine", "peak": 5, "final": 0, "warmupEpochs": 1},
        "lars": {},
        "ema": {"decay": 0.9},
        **_MIXED,
    },
    "accumulation": {"accumulationSteps": 2},
    "dynamic loss scale": _DYNAMIC | {"ema": {"decay": 0.9}},
    "THOR with all": {"algorithm": "THOR", "thor": _THOR, "accumulationSteps": 2, "ema": {"decay": 0.9}}
    | _DYNAMIC
    | _MIXED,
}
