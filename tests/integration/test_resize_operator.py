"""The C++ operator that resizes and normalises images: the bits of Pillow and NumPy, in any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from resnetboost_trainer.data import resize
from resnetboost_trainer.data.augmentation import Box
from resnetboost_trainer.data.resize import Part
from resnetboost_trainer.data.transforms import IMAGENET
from resnetboost_trainer.kernels import arrays, library
from support.examples import examples

pytestmark = pytest.mark.usefixtures("operators")

Floats = NDArray[np.float32]
sides, shares = st.integers(8, 90), st.floats(0, 1)


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise with white and black pixels, whose sums reach both ends of a byte."""
    drawn = np.random.default_rng(seed).integers(-128, 384, (height, width, 3))
    return np.clip(drawn, 0, 255).astype(np.uint8)


def ours(part: Part, width: int, height: int, mirrored: bool = False) -> Floats:
    out = np.full((3, height, width), np.nan, np.float32)
    resize.fill(out, part, mirrored, IMAGENET)
    return out


def by_pillow(part: Part, width: int, height: int) -> Floats:
    out = np.empty((3, height, width), np.float32)
    resize.normalise(out, np.asarray(resize.resized(part, width, height)), IMAGENET)
    return out


@examples(60)
@given(sides, sides, st.integers(1, 70), st.integers(1, 70), st.tuples(shares, shares, shares, shares), st.booleans())
@example(300, 250, 224, 224, (0.0, 0.0, 1.0, 1.0), False)  # rows first
@example(250, 300, 224, 224, (0.0, 0.0, 1.0, 1.0), False)
@example(8, 8, 224, 224, (0.9, 0.9, 1.0, 1.0), False)
@example(90, 900, 8, 5, (0.0, 0.0, 1.0, 1.0), True)
@example(900, 90, 8, 5, (0.0, 0.0, 1.0, 1.0), True)
def test_a_box_is_resized_to_the_bits_of_pillow(
    width: int, height: int, to_width: int, to_height: int, ends: tuple[float, float, float, float], whole: bool
) -> None:
    """Boxes with whole and broken bounds, of one pixel and more, enlarged and reduced."""
    (left, right), (top, bottom) = sorted(ends[:2]), sorted(ends[2:])
    box = Box(
        left * (width - 1), top * (height - 1), 1 + (right - left) * (width - 1), 1 + (bottom - top) * (height - 1)
    )
    part = Part(noise(width, height), Box(*map(int, box)) if whole else box)
    expected = by_pillow(part, to_width, to_height)
    np.testing.assert_array_equal(ours(part, to_width, to_height), expected)
    np.testing.assert_array_equal(ours(part, to_width, to_height, mirrored=True), expected[:, :, ::-1])


@pytest.mark.parametrize("mirrored", [False, True])
def test_without_the_operator_the_bits_are_the_same(mirrored: bool) -> None:
    """Rows that do not follow each other in memory are resized by Pillow, as everything is where there is no g++."""
    pixels, box = noise(300, 250), Box(10, 20, 240, 200)
    sparse = np.repeat(pixels, 2, axis=0)[::2]
    assert not sparse.flags.c_contiguous
    np.testing.assert_array_equal(ours(Part(sparse, box), 64, 64, mirrored), ours(Part(pixels, box), 64, 64, mirrored))


def test_threads_do_not_disturb_each_other() -> None:
    parts = [Part(noise(200 + 20 * k, 420 - 30 * k, k), Box(k, 2 * k, 150 + k, 160 - k)) for k in range(8)]
    expected = [ours(part, 96, 64) for part in parts]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda part: ours(part, 96, 64), parts * 20))
    for place, one in enumerate(found):
        np.testing.assert_array_equal(one, expected[place % len(parts)])


@pytest.mark.parametrize(
    ("piece", "box"),
    [
        ((0, 0, 41, 30, 0), (0, 0, 8, 8)),  # wider than the image
        ((0, -1, 40, 30, 0), (0, 0, 8, 8)),
        ((0, 0, 40, 31, 0), (0, 0, 8, 8)),
        ((9, 0, 9, 30, 0), (0, 0, 0, 8)),
        ((0, 0, 40, 30, 0), (0, 0, 40.5, 8)),  # a box beyond its piece
        ((0, 0, 40, 30, 0), (0, 8, 8, 8)),
        ((0, 0, 40, 30, 0), (0, float("nan"), 8, 8)),
    ],
)
def test_the_operator_reads_nothing_beyond_the_image(piece: tuple[int, ...], box: tuple[float, ...]) -> None:
    tensors = np.array(piece, np.int32), np.array(box, np.float32), *IMAGENET, np.empty((3, 8, 8), np.float32)
    with pytest.raises(RuntimeError, match="operator resize_image refuses its arrays"):
        arrays.call(library.FILE, "resize_image", noise(40, 30), *tensors)
