"""A stage of a job: one algorithm with its epochs, batches, learning rate and numerics."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from resnetboost_api.evaluations import StopWhen
from resnetboost_api.fields import ATOMIC, NO_DEFAULT, Block, Rule, StageName, rules
from resnetboost_api.optimizers import AdamW, Adasum, Lamb, Lars, Momentum, Pca, Thor
from resnetboost_api.storage import Location

Algorithm = Literal["Momentum", "AdamW", "LAMB", "THOR", "Adasum", "PCA"]
Schedule = Literal["Cosine", "Linear", "Step", "Polynomial", "Constant", "OneCycle", "WSD", "LinearCosine"]
# Schedules whose rate at a step is the same in a longer stage; all others are laid out over the epochs of the stage.
INDEPENDENT_OF_EPOCHS = ("Step", "Constant")
# Schedules that fall to final.
FALLING = ("Cosine", "Linear", "Polynomial", "OneCycle", "WSD")
Precision = Literal["Float32", "Float16", "BFloat16"]
SmoothedOver = Literal["AllClasses", "OtherClasses"]
LossFunction = Literal["CrossEntropy", "BinaryCrossEntropy"]
Weighting = Literal["Equal", "Balanced"]
Which = Literal["Last", "Best"]
JobName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=49,
        pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$",
        title="a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
]
Milestones = Annotated[
    tuple[Annotated[float, Meta(gt=0, le=100000, description="Epoch at which the rate drops.")], ...],
    Meta(
        max_length=16,
        extra_json_schema={
            "minItems": 1,
            **ATOMIC,
            **NO_DEFAULT,
            **rules(
                Rule(
                    """
                    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].all(i,
                    i + 1 >= size(self) || self[i] < self[i + 1])
                    """,
                    "milestones must ascend, each above the one before; sort them and drop doubles",
                )
            ),
        },
    ),
]


class LearningRate(Block, frozen=True, kw_only=True):
    """The learning rate over the stage."""

    schedule: Schedule = "Cosine"
    """Shape of the curve after the warm-up. Cosine and Linear fall from peak to final, Step multiplies by gamma at each
    milestone, Polynomial falls from peak to final with a power of the way that is left and can do as Step besides,
    Constant stays at peak. OneCycle rises from initial to peak by half a cosine, over warmupEpochs, and falls to final
    by another one. WSD (warm-up, stable, decay) stays at peak and falls to final in the last decayEpochs. LinearCosine
    is the model zoo's cosine, times a line that falls to 0.
    """
    peak: Annotated[float, Meta(gt=0, le=1000)] = 0.1
    """The highest learning rate, reached at the end of the warm-up. It is for the global batch and is not scaled with
    the number of ranks. With Adasum it is for the batch of one node, or of one rank if the topology is Flat, because
    the sum is longer than a mean. A stage of PCA uses it with the solver SGD only.
    """
    final: Annotated[float, Meta(ge=0, le=1000)] = 0
    """The learning rate at the end of the schedule, at most peak. Cosine, Linear, Polynomial, OneCycle and WSD only."""
    initial: Annotated[float, Meta(gt=0, le=1000)] | None = None
    """The learning rate of the first step, at most peak; a 25th of peak where it is left out. OneCycle only."""
    warmup_epochs: Annotated[float, Meta(ge=0, le=100000)] = 0
    """Epochs over which the rate rises evenly from near 0 to peak, less than the epochs of the stage. Parts of an epoch
    are allowed; 0 means no warm-up.
    """
    milestones: Milestones = ()
    """Epochs, counted from the start of the stage, at which Step, and Polynomial if it has any, multiply the rate by
    gamma. Ascending; parts of an epoch are allowed.
    """
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Factor on the learning rate at each milestone. Step and Polynomial only."""
    power: Annotated[float, Meta(gt=0, le=100)] = 2
    """How fast the rate falls: 1 as Linear, more steeply first and gently later above it. Polynomial only."""
    decay_epochs: Annotated[float, Meta(gt=0, le=100000)] | None = None
    """The last epochs of the schedule, in which the rate falls from peak to final, steeply first. Parts of an epoch are
    allowed. WSD only.
    """
    schedule_epochs: Annotated[float, Meta(gt=0, le=100000)] | None = None
    """Epochs the schedule is laid out over when the stage is to stop before its end; at least the epochs of the stage,
    which are also taken when it is left out.
    """


ClassWeights = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=1000000, description="Weight of one class.")], ...],
    Meta(max_length=1000, extra_json_schema={"minItems": 1, **ATOMIC, **NO_DEFAULT}),
]


class Loss(Block, frozen=True, kw_only=True):
    """What the training makes small. The loss of evaluations is the plain cross entropy in any case."""

    function: LossFunction = "CrossEntropy"
    """CrossEntropy: of the softmax over all classes. BinaryCrossEntropy: of a sigmoid for each class by itself, the
    mean over images and classes, as in "ResNet strikes back"; its gradients are smaller by a factor of about
    numClasses, and Momentum wants a higher learning rate.
    """
    # No smaller bound: the API server rounds it to 0 for whole numbers, and takes 0.
    target_threshold: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Targets above it become 1 and all others 0, after label smoothing, mixup and CutMix: with 0.2 both classes of
    most mixtures count in full. Left out, targets stay as they are. BinaryCrossEntropy only.
    """
    class_weights: ClassWeights = ()
    """Weight of each class in the loss, as many as numClasses, in the order of the labels; those of PyTorch's
    CrossEntropyLoss(weight=...). Left out, classWeighting says them.
    """
    class_weighting: Weighting = "Equal"
    """Equal: each class has the weight 1. Balanced: each has the weight images / (classes x images of the class),
    counted in the training images, so that rare classes count as much as frequent ones.
    """


class Distillation(Block, frozen=True, kw_only=True):
    """Learn from another network's predictions too (knowledge distillation). The loss is (1 - alpha) times that of the
    labels and alpha times temperature squared times the divergence (KL) of the network's predictions from the
    teacher's, both with logits divided by the temperature. Left out, only labels are learnt.
    """

    teacher: Location
    """Where rank 0 finds the teacher, in its pod (a job on the same checkpoint.claimName is at /checkpoints/UID) or in
    object storage (s3://bucket/path): a run's folder or a checkpoint's, or a file of torchvision's or timm's weights.
    Any network of this product with as many classes and channels. It sees the same augmented images, in evaluation
    mode, and does not learn. Checkpoints have its hash: a restart goes on with the same one or fails.
    """
    which: Which = "Last"
    """Which checkpoint of a run's folder: Last, or Best, which checkpoint.best of that run has kept."""
    temperature: Annotated[float, Meta(gt=0, le=100)] = 4
    """Above 1 the teacher's smaller probabilities count more."""
    alpha: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Weight of the teacher, from above 0 to 1, which leaves labels out."""


class DynamicLossScale(Block, frozen=True, kw_only=True):
    """A factor on the loss that adapts itself, instead of lossScale: it halves when a gradient is not finite, which
    leaves that step out, and doubles after growthSteps steps without one, up to 16777216. Checkpoints have it. In
    Float16 it is there without being written, unless lossScale is above 1.
    """

    initial: Annotated[float, Meta(ge=1, le=16777216)] = 65536
    """The factor that the stage begins with; powers of two cost no precision."""
    growth_steps: Annotated[int, Meta(ge=1, le=1000000000)] = 2000
    """After how many steps without one that was left out the factor doubles; more than 16777216 count as so many."""


class AllReduceFusion(Block, frozen=True, kw_only=True):
    """Sum gradients over the devices in buckets, each as soon as the backward pass has made it, and not all of them
    after it: for devices that compute and communicate at once. Left out, or with one device, nothing is summed
    before all is made. Momentum, AdamW, LAMB and PCA only.
    """

    bucket_bytes: Annotated[int, Meta(ge=65536, le=2147483647)] = 26214400
    """The most bytes of a bucket. Small ones begin sooner, large ones use the network better; a weight matrix of more
    bytes is a bucket by itself.
    """


class Ema(Block, frozen=True, kw_only=True):
    """Keep an exponential moving average of the weights and of the running means of batch normalization beside them
    (EMA). It is evaluated too, and saved in ema.safetensors; the next stage starts from the weights themselves all
    the same. Left out, none is kept.
    """

    decay: Annotated[float, Meta(ge=0, lt=1)] = 0.9999
    """Share of the average that a step keeps, below 1; after n steps it is at most n / (n + 10), so that the average
    soon forgets what training began with.
    """


class ParameterGroup(Block, frozen=True, kw_only=True):
    """Parameters with a learning rate or a weight decay of their own."""

    parameters: Annotated[str, Meta(min_length=1, max_length=100)]
    """Pattern of names as model.safetensors has them, with * for any text and ? for any character: layer4.*, fc.*,
    *.gamma, * for all. The first group that matches a parameter is its own.
    """
    learning_rate_factor: Annotated[float, Meta(gt=0, le=1000)] = 1
    """Factor on the learning rate."""
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] | None = None
    """Weight decay instead of the algorithm's, of all of these parameters: also of biases and batch normalization. Left
    out, they have the usual one.
    """


ParameterGroups = Annotated[tuple[ParameterGroup, ...], Meta(max_length=16, extra_json_schema={**ATOMIC, **NO_DEFAULT})]


class StartFrom(Block, frozen=True, kw_only=True):
    """Where the first weights come from. Left out, they are the last ones of the stage before, and the first stage
    begins with fresh ones. Nothing but weights and running means is taken over: optimizer, schedule and epochs begin
    anew.
    """

    stage: StageName
    """Name of the stage whose last weights are taken: an earlier one of this job, or any of the job that jobName
    names.
    """
    job_name: JobName | None = None
    """Name of another job of this namespace whose checkpoints lie on the same checkpoint.claimName. The furthest
    checkpoint of its stage is taken, and the job fails if there is none. Left out, the stage is one of this job.
    """
    which: Which = "Last"
    """Last: the weights that the stage ended with. Best: those of its best evaluation, which checkpoint.best keeps; the
    job fails if none is there.
    """


class Snapshots(Block, frozen=True, kw_only=True, rename={"every_epochs": "everyEpochs", "from_epoch": "from"}):
    """Keep the weights of several moments of this stage, beside its checkpoints, for a later stage of PCA to find the
    subspace that they moved in. Left out, none are kept.
    """

    # No smaller bound: the API server rounds it to 0 for whole numbers, and takes 0.
    every_epochs: Annotated[float, Meta(gt=0, le=100000)] = 1
    """Epochs from one snapshot to the next. Parts of an epoch are allowed, and a snapshot is taken at the nearest
    step.
    """
    from_epoch: Annotated[float, Meta(ge=0, le=100000)] = 0
    """Epochs of the stage after which the first snapshot is taken, at most its epochs; 0 takes the initial weights too.
    Parts of an epoch are allowed. The fast early part of a training says little about where it ends.
    """
    keep: Annotated[int, Meta(ge=2, le=1000)] = 60
    """How many of the newest snapshots are kept; older ones are deleted. Each takes 4 bytes for every weight on the
    volume.
    """


class Training(Block, frozen=True, kw_only=True):
    """What each rank of a stage needs to know: the part of a stage that its trainer gets too."""

    algorithm: Algorithm
    """How the weights are updated. Momentum: stochastic gradient descent with momentum and weight decay. AdamW: a
    rate for each weight by the size of its gradients; see adamw. LAMB: AdamW with a rate for each layer, for very large
    batches; see lamb. THOR: as Momentum, but with gradients that the curvature of each layer rescales, for fewer
    epochs; see thor. Adasum: as Momentum, or with thor as THOR, but instead of their mean over the devices comes a sum
    that adds what is independent and averages what agrees, for large global batches; see adasum. PCA: by a quasi-Newton
    method in the small subspace that the weights of an earlier stage moved in, to finish that stage; see pca.
    """
    epochs: Annotated[int, Meta(ge=1, le=100000)]
    """How often the stage goes over the training data."""
    local_batch_size: Annotated[int, Meta(ge=1, le=65536)]
    """Images that a rank works on at a time. The global batch, what a step learns from, is the deviceCount of the
    stage times this number times accumulationSteps, and must not be larger than the training data. At least 2 where
    an image becomes 1 x 1 in the network, since batch normalisation of a single number learns nothing.
    """
    accumulation_steps: Annotated[int, Meta(ge=1, le=65536)] = 1
    """How many batches of localBatchSize each rank goes through for one step, which is made with their mean gradient:
    for a global batch that the devices' memory does not hold. Learning rates, epochs and checkpoints count steps as
    with one batch of that size, and so it learns the same, but that batch normalization sees each of the small ones
    by itself. THOR takes the curvature from the last of them.
    """
    start_from: StartFrom | None = None
    snapshots: Snapshots | None = None
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Share of the target probability that is spread evenly over the classes that labelSmoothingOver says, from 0
    (none) to below 1.
    """
    label_smoothing_over: SmoothedOver = "AllClasses"
    """Over which classes labelSmoothing is spread. AllClasses is the paper's and PyTorch's: of K classes the image's
    own has 1 - labelSmoothing + labelSmoothing / K, each other one labelSmoothing / K. OtherClasses is that of
    MindSpore's model zoo: the image's own has 1 - labelSmoothing, each other one labelSmoothing / (K - 1). Labels of
    mixup and CutMix are mixtures of these.
    """
    loss: Loss = Loss()
    distillation: Distillation | None = None
    precision: Precision = "Float32"
    """Type of the images and of what the layers make of them, and so of what convolutions multiply. All else is Float32
    in any case: weights, batch normalization's statistics, the head, gradients, optimizer and checkpoints, so that
    stages may differ. Float16 wants a loss scale, or small gradients vanish: without lossScale it has a
    dynamicLossScale with its defaults. On CPUs it takes two to four times as long as Float32. BFloat16 is for Ascend
    only, and not for chip 910A.
    """
    loss_scale: Annotated[float, Meta(ge=1, le=16777216)] = 1
    """Factor on the loss before the backward pass, by which the gradients are divided again after it: it keeps small
    gradients of half precision from vanishing. 1 is none. In Float16 a step whose gradient overflows is left out and
    the factor stays; after 24 such steps in a row the next one fails the job. In float32 the factor changes nothing.
    """
    dynamic_loss_scale: DynamicLossScale | None = None
    all_reduce_fusion: AllReduceFusion | None = None
    gradient_noise: bool = False
    """Measure the gradient noise scale: the global batch up to which more images in a step are worth almost as many
    steps less. It comes from the gradients of the ranks' batches of localBatchSize and that of the whole step, so a
    step must have two of them at least. It takes a reduction of each rank's gradient more. Not with Adasum, PCA or
    allReduceFusion, which have no mean of whole gradients.
    """
    evaluate_every_epochs: Annotated[int, Meta(ge=1, le=100000)] = 1
    """Measure the accuracy on the test data after every this many epochs. It is always measured after the last one."""
    stop_when: StopWhen | None = None
    drop_path: Annotated[float, Meta(ge=0, lt=1)] = 0
    """Stochastic depth: the probability with which the last block's branch is left out for an image, so that its
    shortcut alone is learned from. It grows evenly from 0 at the first block; the branches that stay are scaled up by
    as much. In training only. Not for PCA.
    """
    sync_batch_norm: bool = False
    """Whether batch normalization takes its means and variances over the batches of all devices of the stage, as if one
    had all of their images: for a localBatchSize so small that its own would be noise. Each layer then waits for all
    devices, forward and backward.
    """
    learning_rate: LearningRate = LearningRate()
    momentum: Momentum = Momentum()
    clip_norm: Annotated[float, Meta(gt=0, le=1000000)] | None = None
    """Longest Euclidean norm that the gradient of all weights together, the mean over the global batch, may have before
    weight decay and momentum; a longer one is scaled down to it. Left out, none is. Momentum, AdamW and LAMB only;
    THOR has a clipNorm of its own.
    """
    layer_decay: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Factor on the learning rate from each block to the one before it: the last layer has the whole rate, the block
    before it this part, and so on to the first convolution. For fine-tuning. Left out, all have the whole rate.
    Momentum, AdamW and LAMB only.
    """
    parameter_groups: ParameterGroups = ()
    """Learning rates and weight decays of parts of the network, by name. Momentum, AdamW and LAMB only."""
    lars: Lars | None = None
    adamw: AdamW | None = None
    lamb: Lamb | None = None
    ema: Ema | None = None
    thor: Thor | None = None
    pca: Pca | None = None


# Algorithms that take a step by the mean gradient and its history alone.
FIRST_ORDER = ("Momentum", "AdamW", "LAMB")
# Those of them whose own block takes the place of momentum.
WITHOUT_MOMENTUM = {"AdamW": "adamw", "LAMB": "lamb"}
IS_DEFAULT_MOMENTUM = "self.momentum.momentum == 0.9 && self.momentum.weightDecay == 0.0001 && !self.momentum.nesterov"


def listed(names: Sequence[str]) -> str:
    """The names in a sentence: A, B and C."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def only_for(block: str, *algorithms: str, remedy: str = "leave it out or change the algorithm") -> Rule:
    """The rule that a stage of any other algorithm leaves the block out."""
    if len(algorithms) == 1:
        condition, named = f"self.algorithm == '{algorithms[0]}'", f"algorithm {algorithms[0]}"
    else:
        condition = f"self.algorithm in {list(algorithms)}"
        named = f"algorithms {listed(algorithms)}"
    return Rule(
        f"{condition} || !has(self.{block})",
        f"{block} is for the {named}; {remedy}",
        field_path=f".{block}",
        reason="FieldValueForbidden",
        message_expression=f'"{block} is for the {named}, and this one is " + self.algorithm + "; {remedy}"',
    )


def only_for_schedule(field: str, schedule: str) -> Rule:
    """The rule that any other schedule leaves the field of the learning rate out."""
    return Rule(
        f"self.learningRate.schedule == '{schedule}' || !has(self.learningRate.{field})",
        f"{field} is for the schedule {schedule}; leave it out",
        field_path=f".learningRate.{field}",
        reason="FieldValueForbidden",
        message_expression=f"""
        "{field} is for the schedule {schedule}, and this one is " + self.learningRate.schedule + "; leave it out"
        """,
    )


class Stage(Training, frozen=True, kw_only=True):
    """One part of the training with an algorithm of its own.

    `thor`, `adasum`, `pca`, `lars` and the like have no default in the CRD, because stages of other algorithms must not
    have them; `completed` fills in those that go without saying. `device_count` is 0 where it is left out.
    """

    name: StageName
    """Name of the stage, unique in the job. Pods, checkpoints and metrics carry it."""
    device_count: Annotated[int, Meta(ge=0, le=1024, extra_json_schema={"minimum": 1, **NO_DEFAULT})] = 0
    """Number of devices of this stage, and so of its ranks and pods, at most device.count, which is taken when it is
    left out. With device.perNode it is a multiple of perNode or below it.
    """
    adasum: Adasum | None = None
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.learningRate.warmupEpochs < double(self.epochs)",
            "the warm-up must be shorter than the stage; use fewer warmupEpochs than epochs",
            field_path=".learningRate.warmupEpochs",
        ),
        Rule(
            """
            !has(self.learningRate.scheduleEpochs) ||
            self.learningRate.scheduleEpochs >= double(self.epochs)
            """,
            """
            the schedule must not be shorter than the stage; use at least as many scheduleEpochs as
            epochs, or leave scheduleEpochs out
            """,
            field_path=".learningRate.scheduleEpochs",
        ),
        Rule(
            "!has(self.stopWhen) || self.evaluateEveryEpochs < self.epochs",
            """
            stopWhen looks at evaluations, and the only one of this stage is after its last epoch; use an
            evaluateEveryEpochs below epochs, or leave stopWhen out
            """,
            field_path=".stopWhen",
        ),
        # Rules on learningRate stand here and not there, because a rule must also hold for an object's bare default.
        Rule(
            f"!(self.learningRate.schedule in {list(FALLING)}) || self.learningRate.final <= self.learningRate.peak",
            "the learning rate must not end above its peak; lower final or raise peak",
            field_path=".learningRate.final",
        ),
        Rule(
            f"self.learningRate.schedule in {list(FALLING)} || self.learningRate.final == 0.0",
            f"final is for the schedules {listed(FALLING)}; leave it out",
            field_path=".learningRate.final",
            reason="FieldValueForbidden",
            message_expression=f"""
            "final is for the schedules {listed(FALLING)}, and this one is "
            + self.learningRate.schedule + "; leave it out"
            """,
        ),
        Rule(
            "!has(self.learningRate.initial) || self.learningRate.initial <= self.learningRate.peak",
            "the learning rate must not begin above its peak; lower initial or raise peak",
            field_path=".learningRate.initial",
        ),
        only_for_schedule("initial", "OneCycle"),
        Rule(
            "self.learningRate.schedule != 'OneCycle' || self.learningRate.warmupEpochs > 0.0",
            """
            the schedule OneCycle needs warmupEpochs, in which the rate rises; add them, such as 0.3 times the
            epochs
            """,
            field_path=".learningRate.warmupEpochs",
            reason="FieldValueRequired",
        ),
        only_for_schedule("decayEpochs", "WSD"),
        Rule(
            "self.learningRate.schedule != 'WSD' || has(self.learningRate.decayEpochs)",
            "the schedule WSD needs decayEpochs, the last epochs, in which the rate falls; add them",
            field_path=".learningRate.decayEpochs",
            reason="FieldValueRequired",
        ),
        Rule(
            """
            !has(self.learningRate.decayEpochs) ||
            self.learningRate.warmupEpochs + self.learningRate.decayEpochs <=
            (has(self.learningRate.scheduleEpochs) ? self.learningRate.scheduleEpochs : double(self.epochs))
            """,
            "warm-up and decay must not be longer than the schedule; lower decayEpochs or warmupEpochs",
            field_path=".learningRate.decayEpochs",
        ),
        Rule(
            "self.learningRate.schedule != 'Step' || has(self.learningRate.milestones)",
            "the schedule Step needs milestones, the epochs at which the rate drops; add them",
            field_path=".learningRate.milestones",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.learningRate.schedule in ['Step', 'Polynomial'] || !has(self.learningRate.milestones)",
            "milestones are for the schedules Step and Polynomial; leave them out",
            field_path=".learningRate.milestones",
            reason="FieldValueForbidden",
            message_expression="""
            "milestones are for the schedules Step and Polynomial, and this one is "
            + self.learningRate.schedule + "; leave them out"
            """,
        ),
        only_for("thor", "THOR", "Adasum"),
        only_for("clipNorm", *FIRST_ORDER, remedy="leave it out, or use thor.clipNorm if the stage has thor"),
        only_for("layerDecay", *FIRST_ORDER),
        only_for("parameterGroups", *FIRST_ORDER),
        *(only_for(block, algorithm) for algorithm, block in WITHOUT_MOMENTUM.items()),
        *(
            Rule(
                f"self.algorithm != '{algorithm}' || {IS_DEFAULT_MOMENTUM}",
                f"""
                {algorithm} takes nothing from momentum; leave it out, and set {block}.beta1 and
                {block}.weightDecay instead
                """,
                field_path=".momentum",
                reason="FieldValueForbidden",
            )
            for algorithm, block in WITHOUT_MOMENTUM.items()
        ),
        Rule(
            "self.algorithm != 'AdamW' || self.learningRate.peak < 0.1",
            """
            AdamW changes each weight by about the learning rate in every step, so that a peak of 0.1, which is
            Momentum's default, learns nothing; use a peak below it, such as 0.001
            """,
            field_path=".learningRate.peak",
        ),
        Rule(
            "self.lossScale == 1.0 || !has(self.dynamicLossScale)",
            """
            lossScale is a factor that stays and dynamicLossScale one that adapts itself; leave one of
            them out
            """,
            field_path=".dynamicLossScale",
        ),
        only_for("lars", "Momentum"),
        Rule(
            "self.loss.function == 'BinaryCrossEntropy' || !has(self.loss.targetThreshold)",
            "targetThreshold is for the function BinaryCrossEntropy; leave it out, or change the function",
            field_path=".loss.targetThreshold",
            reason="FieldValueForbidden",
        ),
        Rule(
            "!has(self.loss.classWeights) || self.loss.classWeighting == 'Equal'",
            "Balanced computes the weights of the classes and classWeights gives them; leave one of them out",
            field_path=".loss.classWeights",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.algorithm != 'PCA' || self.accumulationSteps == 1",
            """
            the line search of PCA looks at all images of a step again; leave accumulationSteps out, or
            use another algorithm
            """,
            field_path=".accumulationSteps",
        ),
        only_for(
            "allReduceFusion",
            *FIRST_ORDER,
            "PCA",
            remedy="leave it out or change the algorithm, because the others look at each rank's own gradient",
        ),
        Rule(
            "self.accumulationSteps == 1 || !has(self.allReduceFusion)",
            """
            allReduceFusion sums the gradient of each small batch over the devices, and accumulationSteps
            first adds up those of one device; leave one of them out
            """,
            field_path=".allReduceFusion",
        ),
        Rule(
            "self.dropPath == 0.0 || self.algorithm != 'PCA'",
            """
            the line search of PCA compares losses of one network, and dropPath changes it from batch to batch; leave
            dropPath out, or use another algorithm
            """,
            field_path=".dropPath",
        ),
        Rule(
            "!self.syncBatchNorm || !has(self.allReduceFusion)",
            """
            allReduceFusion sums gradients while syncBatchNorm sums those of its statistics, in an order that devices
            would not agree on; leave one of them out
            """,
            field_path=".allReduceFusion",
        ),
        Rule(
            "!self.syncBatchNorm || self.algorithm != 'Adasum'",
            """
            Adasum sums what each device learns from its own images, and syncBatchNorm makes that depend on all of them;
            leave syncBatchNorm out, or use another algorithm
            """,
            field_path=".syncBatchNorm",
        ),
        Rule(
            "!self.gradientNoise || !(has(self.allReduceFusion) || self.algorithm in ['Adasum', 'PCA'])",
            """
            gradientNoise compares the gradient of each device with their mean, which Adasum, PCA and
            allReduceFusion do not have; leave it out, or them
            """,
            field_path=".gradientNoise",
        ),
        only_for("adasum", "Adasum"),
        Rule(
            """
            self.algorithm != 'Adasum' || !has(self.thor) || !has(self.adasum) ||
            self.adasum.reduce == 'Delta'
            """,
            """
            with thor each node rescales the gradient of a step of its own, so the changes of the
            weights are what is summed; use Delta, or leave thor out
            """,
            field_path=".adasum.reduce",
        ),
        Rule(
            "self.algorithm != 'Adasum' || !has(self.deviceCount) || self.deviceCount > 1",
            """
            Adasum sums what several devices learn, and this stage has one; use more, or the algorithm
            Momentum or THOR
            """,
            field_path=".deviceCount",
        ),
        only_for("pca", "PCA"),
        Rule(
            "!has(self.snapshots) || self.snapshots.from <= double(self.epochs)",
            "snapshots must begin before the stage ends; use a from of at most its epochs",
            field_path=".snapshots.from",
        ),
    )


StageOrTraining = TypeVar("StageOrTraining", bound=Training)


def completed(stage: StageOrTraining) -> StageOrTraining:
    """A stage with the blocks that go without saying: that of its algorithm, and a loss scale in Float16."""
    unscaled = stage.precision == "Float16" and stage.loss_scale == 1
    return msgspec.structs.replace(
        stage,
        dynamic_loss_scale=stage.dynamic_loss_scale or (DynamicLossScale() if unscaled else None),
        adamw=stage.adamw or (AdamW() if stage.algorithm == "AdamW" else None),
        lamb=stage.lamb or (Lamb() if stage.algorithm == "LAMB" else None),
        thor=stage.thor or (Thor() if stage.algorithm == "THOR" else None),
        pca=stage.pca or (Pca() if stage.algorithm == "PCA" else None),
    )
