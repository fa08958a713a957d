"""What fields are called in other people's scripts, and which number a bare one stands for; it judges nothing.

The names are those of MindSpore's model zoo, MindCV and PyTorch's reference scripts that do not resemble the job's own.
"""

import re

_STAGE = "spec.stages[]"
_RATE = f"{_STAGE}.learningRate"
_AUGMENTATION = "spec.dataset.augmentation"

# Written without _, - and capitals. What differs in nothing else is found by its likeness.
MEANT = {
    "lr": f"{_RATE}.peak",
    "baselr": f"{_RATE}.peak",
    "lrmax": f"{_RATE}.peak",
    "minlr": f"{_RATE}.final",
    "lrend": f"{_RATE}.final",
    "scheduler": f"{_RATE}.schedule",
    "lrscheduler": f"{_RATE}.schedule",
    "lrdecaymode": f"{_RATE}.schedule",
    "lrgamma": f"{_RATE}.gamma",
    "lrwarmupepochs": f"{_RATE}.warmupEpochs",
    "decayepochs": f"{_RATE}.scheduleEpochs",
    "opt": f"{_STAGE}.algorithm",
    "optimizer": f"{_STAGE}.algorithm",
    "wd": f"{_STAGE}.momentum.weightDecay",
    "usenesterov": f"{_STAGE}.momentum.nesterov",
    "epochsize": f"{_STAGE}.epochs",
    "numepochs": f"{_STAGE}.epochs",
    "batchsize": f"{_STAGE}.localBatchSize",
    "gradientaccumulationsteps": f"{_STAGE}.accumulationSteps",
    "amp": f"{_STAGE}.precision",
    "amplevel": f"{_STAGE}.precision",
    "labelsmoothfactor": f"{_STAGE}.labelSmoothing",
    "clipgradnorm": f"{_STAGE}.clipNorm",
    "emadecay": f"{_STAGE}.ema.decay",
    "modelemadecay": f"{_STAGE}.ema.decay",
    "valinterval": f"{_STAGE}.evaluateEveryEpochs",
    "arch": "spec.model.name",
    "netname": "spec.model.name",
    "classnum": "spec.model.numClasses",
    "pretrained": "spec.model.weights.path",
    "datadir": "spec.dataset.path",
    "datapath": "spec.dataset.path",
    "datasetpath": "spec.dataset.path",
    "numworkers": "spec.dataset.workers",
    "numparallelworkers": "spec.dataset.workers",
    "hflip": f"{_AUGMENTATION}.horizontalFlip",
    "mixup": f"{_AUGMENTATION}.mixupAlpha",
    "cutmix": f"{_AUGMENTATION}.cutmixAlpha",
    "randomseed": "spec.seed",
    "devicetarget": "spec.device.type",
    "devicenum": "spec.device.count",
    "worldsize": "spec.device.count",
    "nprocpernode": "spec.device.perNode",
    "keepcheckpointmax": "spec.checkpoint.keep",
}

# Blocks with one number that people mean when they write a number in place of the block.
NUMBER_OF = {
    "learningRate": "peak",
    "momentum": "momentum",
    "ema": "decay",
    "lars": "trustCoefficient",
    "dynamicLossScale": "initial",
}


def meant(name: object, parent: str) -> str | None:
    """The field that `name` is elsewhere, as seen from the block `parent` (`spec.stages[0]`); None for other names."""
    found = MEANT.get(re.sub("[_-]", "", str(name)).lower())
    return found and found.removeprefix(re.sub(r"\[\d+\]", "[]", parent) + ".")


def as_block(field: str, value: float) -> str | None:
    """The block to write where the field `spec.stages[0].ema` is a number; None if no key is the obvious one."""
    name = field.rpartition(".")[2]
    return f"{name}: {{{NUMBER_OF[name]}: {value}}}" if name in NUMBER_OF else None
