"""The network of a job: its architecture, initial weights and frozen parts."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.fields import ATOMIC, NO_DEFAULT, Block, Rule
from resnetboost_api.storage import Location

ModelName = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "seresnet50",
    "resnet18d",
    "resnet34d",
    "resnet50d",
    "resnet101d",
    "resnet152d",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
]
ConvolutionInit = Literal["HeNormal", "HeNormalFanIn", "XavierUniform", "TruncatedNormal"]
HeadInit = Literal["Uniform", "Normal", "TruncatedNormal"]
Head = Literal["Keep", "New"]
Part = Literal["stem", "layer1", "layer2", "layer3", "layer4", "head"]
Frozen = Annotated[
    tuple[Annotated[Part, Meta(description="One part.")], ...],
    Meta(max_length=6, extra_json_schema=ATOMIC | NO_DEFAULT),
]


class Init(Block, frozen=True, kw_only=True):
    """How weights are drawn that come from nowhere else."""

    convolution: ConvolutionInit = "HeNormal"
    """Of k x k convolutions. HeNormal: normal of variance 2 / (outputs k k), as torchvision does; HeNormalFanIn: the
    same by inputs; XavierUniform: within the root of 6 / ((inputs + outputs) k k); TruncatedNormal: variance 1 /
    (inputs k k), cut at two deviations, as MindSpore's model zoo does.
    """
    head: HeadInit = "Uniform"
    """Of the dense layer at the end. Uniform: within 1 / sqrt(inputs); Normal and TruncatedNormal: of deviation 0.01,
    with biases of 0.
    """
    zero_gamma: bool = False
    """Whether the last batch norm of each block begins with a scale of 0, so that the block begins as its shortcut.
    Helps with large batches.
    """


class Weights(Block, frozen=True, kw_only=True):
    """A file whose weights the first stage starts from: torchvision's or timm's state dict (.safetensors, or .pth as
    torch.save writes it), or a checkpoint's model.safetensors. It is read once: a job that resumes has its own.
    """

    path: Location
    """Where rank 0 finds the file, or the folder of a checkpoint or of a run, whose newest checkpoint is taken, inside
    its pod, usually under one of template.volumeMounts, or in object storage (s3://bucket/path). `resnetboost run`
    reads the same path on this machine.
    """
    head: Head = "Keep"
    """Keep takes the dense layer at the end from the file, whose classes must be the job's; New draws another one, for
    other classes.
    """


class Model(Block, frozen=True, kw_only=True):
    """The network to train."""

    name: ModelName
    """The ResNet. resnet20, 32, 44 and 56 are made for small images (32 x 32 pixels and below), resnet18, 34, 50, 101
    and 152 for large ones (224 x 224); so are all others. seresnet50 is resnet50 with squeeze and excitation; those
    that end in d are ResNet-D, with a deeper stem and shortcuts that average; resnext* have grouped convolutions, and
    wide_resnet* twice as many channels within their blocks.
    """
    num_classes: Annotated[int, Meta(ge=2, le=1000000)]
    """Number of classes. Labels in the data set run from 0 to this number less one."""
    init: Init = Init()
    weights: Weights | None = None
    freeze: Frozen = ()
    """Parts of the network that do not learn, in any stage: the stem is all before layer1, the head the dense layer at
    the end. Their batch norms use and keep the running statistics they begin with.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self == oldSelf",
            "model cannot change once the job exists; delete the job and apply it again",
        ),
        Rule(
            """
            !has(self.freeze) || !('layer4' in self.freeze) ||
            !(self.name in ['resnet20', 'resnet32', 'resnet44', 'resnet56'])
            """,
            "resnet20, 32, 44 and 56 have no layer4; leave it out",
            field_path=".freeze",
        ),
        Rule(
            """
            !has(self.freeze) || ['stem', 'layer1', 'layer2', 'layer3', 'head']
            .exists(p, !(p in self.freeze)) || (!('layer4' in self.freeze) &&
            !(self.name in ['resnet20', 'resnet32', 'resnet44', 'resnet56']))
            """,
            "nothing is left that learns; leave a part out",
            field_path=".freeze",
        ),
        Rule(
            """
            !has(self.freeze) || !('head' in self.freeze) || !has(self.weights) ||
            self.weights.head == 'Keep'
            """,
            "a new head has to learn; leave head out, or set weights.head to Keep",
            field_path=".freeze",
        ),
    )
