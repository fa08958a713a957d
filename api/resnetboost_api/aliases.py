"""Names that other frameworks use for fields and values, and the field that a bare number in place of a block means.

The names come from MindSpore's model zoo, MindCV and PyTorch's reference scripts, if they do not resemble the job's.
"""

import re
from collections.abc import Sequence

_STAGE = "spec.stages[]"
_RATE = f"{_STAGE}.learningRate"
_AUGMENTATION = "spec.dataset.augmentation"
# No field: Kueue reads its label on every kind of job.
_QUEUE = "metadata.labels['kueue.x-k8s.io/queue-name']"

# Written without _, - and capitals. Similar names are found by their likeness and are not listed.
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
    "droppathrate": f"{_STAGE}.dropPath",
    "stochasticdepthprob": f"{_STAGE}.dropPath",
    "syncbn": f"{_STAGE}.syncBatchNorm",
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
    "aa": f"{_AUGMENTATION}.randAugment.magnitude",
    "autoaugment": f"{_AUGMENTATION}.randAugment.magnitude",
    "reprob": f"{_AUGMENTATION}.randomErasing.probability",
    "valsplit": "spec.dataset.validationSplit",
    "bceloss": f"{_STAGE}.loss.function",
    "bcetargetthresh": f"{_STAGE}.loss.targetThreshold",
    "teacher": f"{_STAGE}.distillation.teacher",
    "teacherpath": f"{_STAGE}.distillation.teacher",
    "randomseed": "spec.seed",
    "devicetarget": "spec.device.type",
    "devicenum": "spec.device.count",
    "worldsize": "spec.device.count",
    "nprocpernode": "spec.device.perNode",
    "keepcheckpointmax": "spec.checkpoint.keep",
    "batchscheduler": "spec.scheduling.schedulerName",
    "priority": "spec.scheduling.priorityClassName",
    "priorityclass": "spec.scheduling.priorityClassName",
    "queue": _QUEUE,
    "queuename": _QUEUE,
    "topologykey": "spec.scheduling.schedulingConstraints.topology[].key",
}

# Blocks with one number that people mean when they write a number in place of the block.
NUMBER_OF = {
    "learningRate": "peak",
    "momentum": "momentum",
    "ema": "decay",
    "lars": "trustCoefficient",
    "randAugment": "magnitude",
    "randomErasing": "probability",
    "dynamicLossScale": "initial",
}


# Other names of values, without _, -, . and capitals, each with the field's own value.
_VALUES = {
    "bce": "BinaryCrossEntropy",
    "bcewithlogits": "BinaryCrossEntropy",
    "ce": "CrossEntropy",
    "fp16": "Float16",
    "half": "Float16",
    "amp": "Float16",
    "o2": "Float16",
    "o3": "Float16",
    "mixed": "Float16",
    "bf16": "BFloat16",
    "fp32": "Float32",
    "full": "Float32",
    "single": "Float32",
    "float": "Float32",
    "sgd": "Momentum",
    "msgd": "Momentum",
    "nesterov": "Momentum",
    "kfac": "THOR",
    "lbfgs": "BFGS",
    "cuda": "GPU",
    "nvidia": "GPU",
    "npu": "Ascend",
    "atlas": "Ascend",
    "davinci": "Ascend",
    "x86": "CPU",
    "host": "CPU",
    "cosineannealinglr": "Cosine",
    "cosineannealing": "Cosine",
    "cosinedecay": "Cosine",
    "cosinedecaylr": "Cosine",
    "cosinelr": "Cosine",
    "steplr": "Step",
    "multisteplr": "Step",
    "multistep": "Step",
    "stepdecay": "Step",
    "multistepdecay": "Step",
    "piecewise": "Step",
    "piecewiseconstantlr": "Step",
    "poly": "Polynomial",
    "polylr": "Polynomial",
    "polynomiallr": "Polynomial",
    "polynomialdecay": "Polynomial",
    "polynomialdecaylr": "Polynomial",
    "linearlr": "Linear",
    "constantlr": "Constant",
    "fixed": "Constant",
    "none": "Constant",
    "onecyclelr": "OneCycle",
    "onecyclepolicy": "OneCycle",
    "superconvergence": "OneCycle",
    "warmupstabledecay": "WSD",
    "trapezoidal": "WSD",
    "adam": "AdamW",
    "imagenet": "ImageFolder",
    "imagenet1k": "ImageFolder",
    "ilsvrc2012": "ImageFolder",
    "folder": "ImageFolder",
    "imagefolderdataset": "ImageFolder",
    "minddataset": "MindRecord",
    "record": "MindRecord",
    "numpy": "npz",
    "fake": "Synthetic",
    "fakedata": "Synthetic",
    "random": "Synthetic",
    "cifar": "CIFAR10",
    "kaimingnormal": "HeNormal",
    "kaiming": "HeNormal",
    "xavier": "XavierUniform",
    "glorotuniform": "XavierUniform",
    # Actions of Job's podFailurePolicy and JobSet's failurePolicy, and kubelet's reason.
    "count": "Restart",
    "restartjobset": "Restart",
    "ignore": "RestartUncounted",
    "restartjobsetandignoremaxrestarts": "RestartUncounted",
    "failjob": "Fail",
    "failjobset": "Fail",
    "oom": "OutOfMemory",
    "oomkilled": "OutOfMemory",
}
# Values that look as if a field took them, each with one that it does take and why not.
_REFUSED = {
    "Disrupted": (
        "PodLost",
        "no rule's matter: a deleted or evicted pod restarts the gang and does not count; leave it out",
    )
}
_OFTEN_BEFORE = ("torchoptim", "mindsporenn", "torch", "nn", "ms", "lrscheduler", "np")


def value_meant(value: object, allowed: Sequence[object]) -> str | None:
    """The field's value that `value` is an alias of: Cosine for torch's CosineAnnealingLR."""
    word = re.sub("[^a-z0-9]", "", str(value).lower())
    for prefix in ("", *_OFTEN_BEFORE):
        found = _VALUES.get(word.removeprefix(prefix))
        if found in allowed:
            return found
    return None


def refusal(value: object, allowed: Sequence[object]) -> str | None:
    """Why a field with these values never takes this one, to follow "is"; None if there is nothing special about it."""
    found, why = _REFUSED.get(str(value), (None, None))
    return why if found in allowed else None


def meant(name: object, parent: str) -> str | None:
    """The field that `name` is an alias of, relative to the block `parent` (`spec.stages[0]`); None if unknown."""
    found = MEANT.get(re.sub("[_-]", "", str(name)).lower())
    return found and found.removeprefix(re.sub(r"\[\d+\]", "[]", parent) + ".")


def as_block(field: str, value: float) -> str | None:
    """The block to write where the field `spec.stages[0].ema` is a number; None if no key is the obvious one."""
    name = field.rpartition(".")[2]
    return f"{name}: {{{NUMBER_OF[name]}: {value}}}" if name in NUMBER_OF else None
