"""Image transforms: evaluation against torchvision, training against plain Pillow."""

import io
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from resnetboost_trainer.data import transforms as photos
from resnetboost_trainer.data.augmentation import ArrayAugmentation, Box, Colour, ResizedCrop
from resnetboost_trainer.data.dataset import Unreadable
from resnetboost_trainer.data.transforms import IMAGENET, Augmented, Evaluated
from support import photographs

SYSTEM_PYTHON = "/usr/bin/python3"
REFERENCE = Path(__file__).parents[1] / "integration" / "torchvision_transforms.py"
EVALUATED = Evaluated(64, 73)
CROP = ResizedCrop(min_scale=0.08, max_scale=1, min_ratio=3 / 4, max_ratio=4 / 3)
# One level of 255, divided by the smallest deviation. The two passes of a resize may round differently.
ONE_LEVEL = 1.01 / float(IMAGENET.deviation.min())
TOLERANCE = 2 * ONE_LEVEL
Floats = NDArray[np.float32]


def encoded(image: Image.Image, kind: str = "JPEG", **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photograph(width: int = 640, height: int = 427) -> Image.Image:
    return photographs.photographs()["temple"].resize((width, height))


def evaluated(data: bytes, transform: Evaluated = EVALUATED) -> Floats:
    out = np.empty((3, transform.size, transform.size), np.float32)
    photos.fill(out, data, transform, None)
    return out


def augmented(data: bytes, transform: Augmented, seed: int = 0, size: int = 64) -> Floats:
    out = np.empty((3, size, size), np.float32)
    photos.fill(out, data, transform, np.random.default_rng(seed))
    return out


def normalised(image: Image.Image) -> Floats:
    pixels: Floats = np.asarray(image, np.float32).transpose(2, 0, 1)
    found: Floats = (pixels - IMAGENET.mean[:, None, None]) / IMAGENET.deviation[:, None, None]
    return found


def ask_torchvision(folder: Path, *wanted: str) -> None:
    """Make torchvision write its results into the folder of images."""
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torchvision"], capture_output=True, check=False).returncode:
        pytest.skip("no torchvision; scripts/install-system-packages brings it")
    subprocess.run([SYSTEM_PYTHON, str(REFERENCE), str(folder), *wanted], check=True)


@pytest.mark.slow
def test_the_evaluation_transform_is_torchvisions(tmp_path: Path) -> None:
    """Resize, CenterCrop, ToTensor, Normalize on the same JPEGs: wide, tall, square, smaller and larger."""
    sizes = [(640, 427), (427, 640), (375, 500), (100, 100), (90, 61), (61, 90), (33, 200), (64, 73)]
    transforms = [Evaluated(64, 73), Evaluated(224, 256), Evaluated(32, 32)]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(photograph(*size), quality=90))
    ask_torchvision(tmp_path, *(f"{transform.resize}:{transform.size}" for transform in transforms))
    means = []
    for number in range(len(sizes)):
        data = (tmp_path / f"{number}.jpg").read_bytes()
        for transform in transforms:
            theirs = np.load(tmp_path / f"{number}-{transform.resize}-{transform.size}.npy")
            difference = np.abs(evaluated(data, transform) - theirs)
            assert difference.max() <= TOLERANCE, (sizes[number], transform)
            assert difference.mean() <= 0.2 * ONE_LEVEL, (sizes[number], transform)
            means.append(float(difference.mean()))
    assert np.median(means) <= 0.01 * ONE_LEVEL


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("JPEG", mode) for mode in ("RGB", "L", "CMYK")),
        *(("PNG", mode) for mode in ("RGB", "L", "P", "RGBA", "LA", "1")),
        *(("WEBP", mode) for mode in ("RGB", "RGBA")),
        *(("TIFF", mode) for mode in ("RGB", "CMYK")),
    ],
)
def test_every_kind_of_image_is_taken_as_pillow_takes_it(kind: str, mode: str) -> None:
    image = photograph(90, 70)
    data = encoded(image.convert(mode), kind)
    with Image.open(io.BytesIO(data)) as opened:
        plain = opened.convert("RGB").resize((81, 63), Image.Resampling.BILINEAR).crop((24, 16, 56, 48))
    difference = np.abs(evaluated(data, Evaluated(32, 63)) - normalised(plain))
    assert difference.max() <= TOLERANCE
    assert difference.mean() <= 0.2 * ONE_LEVEL


@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [0, 1])
def test_jpegs_are_decoded_to_the_bits_of_pillow(subsampling: int, progressive: int) -> None:
    data = encoded(photograph(301, 203), quality=85, subsampling=subsampling, progressive=progressive)
    with Image.open(io.BytesIO(data)) as opened:
        np.testing.assert_array_equal(photos._decoded(data), np.asarray(opened.convert("RGB")))


def broken(name: str) -> bytes:
    good = encoded(photograph(120, 90), quality=90)
    return {
        "nothing": b"",
        "text": b"not an image at all",
        "cut off": good[: len(good) // 2],
        "cut off in the header": good[:40],
        "zeros": bytes(4000),
        "a png cut off": encoded(photograph(120, 90), "PNG")[:500],
    }[name]


@pytest.mark.parametrize("name", ["nothing", "text", "cut off", "cut off in the header", "zeros", "a png cut off"])
def test_an_undecodable_image_is_one_sentence(name: str) -> None:
    for transform in (EVALUATED, Augmented(CROP, 0.5, None)):
        with pytest.raises(Unreadable, match=r"it cannot be decoded: .") as caught:
            photos.fill(np.empty((3, 64, 64), np.float32), broken(name), transform, np.random.default_rng(0))
        assert "\n" not in str(caught.value)
        assert "0x" not in str(caught.value)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "TGA", "ICO"])
def test_unusual_image_formats_are_refused(kind: str) -> None:
    """Pillow would run an external program for an EPS file."""
    with pytest.raises(Unreadable, match="it cannot be decoded: cannot identify image file"):
        evaluated(encoded(photograph(90, 70), kind))


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "I;16"), ("TIFF", "I;16"), ("TIFF", "I"), ("TIFF", "F")])
def test_more_bits_than_a_byte_are_refused(kind: str, mode: str) -> None:
    """Pillow turns most 16-bit values into white."""
    deep = Image.new(mode, (90, 70), 30_000)
    with pytest.raises(Unreadable, match="more than 8 bits for each colour; save it with 8"):
        evaluated(encoded(deep, kind))


def test_a_lack_of_memory_is_no_fault_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", exhausted)
    with pytest.raises(MemoryError):
        evaluated(encoded(photograph(90, 70), "PNG"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_of_few_pixels_is_refused(kind: str) -> None:
    with pytest.raises(Unreadable, match="it has 90 x 7 pixels, and 8 are the least for a side"):
        evaluated(encoded(photograph(90, 7), kind))


def test_a_small_file_cannot_claim_much_memory() -> None:
    with pytest.raises(Unreadable, match="it has 20000 x 20000 pixels, and 100000000 are the most"):
        evaluated(encoded(Image.new("1", (20000, 20000)), "PNG"))


@pytest.mark.parametrize("size", [(640, 427), (100, 1000), (1000, 100), (9, 9)], ids=str)
def test_crops_have_the_shares_and_ratios_asked_for_and_lie_inside(size: tuple[int, int]) -> None:
    width, height = size
    boxes = [CROP.box(width, height, np.random.default_rng(seed)) for seed in range(400)]
    for left, top, w, h in boxes:
        assert 0 <= left <= left + w <= width and 0 <= top <= top + h <= height
    if min(size) > 100:  # rounding to whole pixels changes the ratio
        shares, ratios = [w * h / (width * height) for _, _, w, h in boxes], [w / h for _, _, w, h in boxes]
        assert 0.07 < min(shares) < 0.15 and 0.85 < max(shares) <= 1
        assert 0.74 < min(ratios) < 0.78 and 1.29 < max(ratios) < 1.34
        assert abs(np.mean(np.log(ratios))) < 0.05


def test_without_a_crop_that_fits_the_largest_central_one_is_taken() -> None:
    assert ResizedCrop(min_scale=1, max_scale=1, min_ratio=1, max_ratio=1).box(300, 100, np.random.default_rng(0)) == (
        100,
        0,
        100,
        100,
    )


def test_a_training_image_is_its_crop_resized() -> None:
    data = encoded(photograph(), quality=95)
    for seed in range(8):
        box = CROP.box(640, 427, np.random.default_rng(seed))
        corners = (int(box.left), int(box.top), int(box.left + box.width), int(box.top + box.height))
        with Image.open(io.BytesIO(data)) as opened:
            plain = opened.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR, box=corners)
        ours = augmented(data, Augmented(CROP, 0, None), seed)
        # A crop of at least twice the target size is decoded at 1/2, 1/4 or 1/8: close, but not identical.
        scaled = min(box.width, box.height) >= 128
        assert np.abs(ours - normalised(plain)).mean() < (0.15 if scaled else 0.01)


def test_a_flip_mirrors() -> None:
    data = encoded(photograph(), quality=90)
    plain, flipped = (augmented(data, Augmented(EVALUATED, flip, None)) for flip in (0, 1))
    np.testing.assert_array_equal(plain[:, :, ::-1], flipped)
    np.testing.assert_array_equal(plain, evaluated(data))


def test_colours_change_within_their_bounds_and_in_any_order() -> None:
    colour = Colour(brightness=0.4, contrast=0.3, saturation=0.2, hue=0)
    drawn = [colour.factors(np.random.default_rng(seed)) for seed in range(200)]
    assert {tuple(name for name, _ in factors) for factors in drawn} == {
        (a, b, c)
        for a in ("brightness", "contrast", "saturation")
        for b in ("brightness", "contrast", "saturation")
        for c in ("brightness", "contrast", "saturation")
        if len({a, b, c}) == 3
    }
    for name, reach in (("brightness", 0.4), ("contrast", 0.3), ("saturation", 0.2)):
        factors = [dict(found)[name] for found in drawn]
        assert min(factors) == pytest.approx(1 - reach, abs=0.02) and max(factors) == pytest.approx(1 + reach, abs=0.02)
    data = encoded(photograph(), quality=90)
    brighter = augmented(data, Augmented(EVALUATED, 0, Colour(brightness=0.4, contrast=0, saturation=0, hue=0)), seed=3)
    factor = Colour(brightness=0.4, contrast=0, saturation=0, hue=0).factors(after_a_flip(3))[0][1]
    dark = normalised(Image.new("RGB", (64, 64)))
    expected = np.minimum((evaluated(data) - dark) * factor, normalised(Image.new("RGB", (64, 64), "white")) - dark)
    assert np.abs(brighter - dark - expected).max() < 2 * ONE_LEVEL


@pytest.mark.slow
def test_hues_are_turned_as_torchvision_does(tmp_path: Path) -> None:
    every = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    images, turns = {"photograph": photograph(96, 64), "noise": every}, ("-0.5", "-0.1", "0.0", "0.003", "0.25", "0.5")
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
    ask_torchvision(tmp_path, "hue", *turns)
    for name, image in images.items():
        for turn in turns:
            theirs = np.load(tmp_path / f"{name}-{turn}.npy")
            np.testing.assert_array_equal(np.asarray(photos.turned(image, float(turn))), theirs, f"{name}, {turn}")


def test_a_hue_is_uniform_and_independent_of_other_draws() -> None:
    three, four = (Colour(brightness=0.4, contrast=0.3, saturation=0.2, hue=hue) for hue in (0, 0.1))
    turns = []
    for seed in range(200):
        found = dict(four.factors(np.random.default_rng(seed)))
        turns.append(found.pop("hue"))
        assert found == dict(three.factors(np.random.default_rng(seed)))
    assert min(turns) == pytest.approx(-0.1, abs=0.005) and max(turns) == pytest.approx(0.1, abs=0.005)
    assert np.mean(turns) == pytest.approx(0, abs=0.01)
    red = encoded(Image.new("RGB", (64, 64), (200, 0, 0)), "PNG")
    blueish = augmented(red, Augmented(EVALUATED, 0, Colour(brightness=0, contrast=0, saturation=0, hue=0.4)), seed=1)
    turn = Colour(brightness=0, contrast=0, saturation=0, hue=0.4).factors(after_a_flip(1))[0][1]
    np.testing.assert_array_equal(blueish, normalised(photos.turned(Image.new("RGB", (64, 64), (200, 0, 0)), turn)))


def after_a_flip(seed: int) -> np.random.Generator:
    draw = np.random.default_rng(seed)
    draw.random()
    return draw


def test_images_in_memory_are_cropped_out_of_their_border_and_flipped() -> None:
    images = np.random.default_rng(0).integers(1, 256, (200, 3, 6, 5), np.uint8)
    draws = [np.random.default_rng(seed) for seed in range(len(images))]
    blank = np.array([0, 7, 9], np.float32)
    found = ArrayAugmentation(2, 0.5).apply(images, blank, draws)
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    padded[:, 1][np.pad(np.ones((200, 6, 5)), ((0, 0), (2, 2), (2, 2))) == 0] = 7
    padded[:, 2][np.pad(np.ones((200, 6, 5)), ((0, 0), (2, 2), (2, 2))) == 0] = 9
    places = []
    for image, own in zip(padded, found, strict=True):
        parts = {
            (top, left, flip): image[:, top : top + 6, left : left + 5][:, :, :: -1 if flip else 1]
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        matches = [place for place, part in parts.items() if (part == own).all()]
        assert len(matches) == 1
        places += matches
    assert len({place[:2] for place in places}) == 25
    assert 70 < sum(flip for _, _, flip in places) < 130


def test_a_box_of_the_evaluation_is_central() -> None:
    assert Evaluated(224, 256).box(512, 256) == Box(144, 16, 224, 224)
    width = Evaluated(224, 256).box(640, 427).width
    assert width == pytest.approx(224 * 640 / math.floor(256 * 640 / 427))
