"""THOR's division of large factors into diagonal blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.optim.thor.blocks import Blocks, cut

axes = st.tuples(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 2000))


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ((64, 1, 128), Blocks(64, 1, 64)),
        ((128, 1, 128), Blocks(128, 1, 128)),
        ((129, 1, 128), Blocks(129, 2, 65)),
        ((16, 9, 128), Blocks(144, 2, 72)),
        ((64, 9, 128), Blocks(576, 8, 72)),
        ((3, 49, 128), Blocks(147, 2, 98)),
        ((3, 49, 49), Blocks(147, 3, 49)),
        ((3, 49, 40), Blocks(147, 7, 21)),
        ((3, 49, 1), Blocks(147, 147, 1)),
        ((5, 1, 8192), Blocks(5, 1, 5)),
    ],
    ids=[
        "smaller than a block",
        "exactly a block",
        "one more than a block: two halves",
        "16 channels of 3x3: two blocks of 8 channels",
        "64 channels of 3x3: eight blocks of 8 channels",
        "the stem of ResNet: two channels and one",
        "a window of exactly a block",
        "a window longer than a block is cut",
        "blocks of one: a diagonal",
        "far smaller than a block",
    ],
)
def test_cut(axis: tuple[int, int, int], expected: Blocks) -> None:
    assert cut(*axis) == expected


def test_padding_is_part_of_the_padded_length() -> None:
    assert cut(13, 49, 128) == Blocks(637, 7, 98)
    assert cut(13, 49, 128).padded == 686


@given(axes)
def test_blocks_cover_the_axis_and_are_no_longer_than_allowed(axis: tuple[int, int, int]) -> None:
    channels, unit, block_size = axis
    blocks = cut(*axis)
    assert blocks.dimension == channels * unit
    assert blocks.padded >= blocks.dimension
    assert 1 <= blocks.size <= block_size


@given(axes)
def test_a_window_that_fits_stays_whole_and_blocks_are_more_than_half_as_long_as_they_may(
    axis: tuple[int, int, int],
) -> None:
    _, unit, block_size = axis
    blocks = cut(*axis)
    run = unit if unit <= block_size else 1
    assert blocks.size % run == 0
    longest = min(block_size // run * run, blocks.dimension)
    assert 2 * blocks.size > longest or blocks.count * (blocks.size - run) < blocks.dimension, (
        "no shorter ones would do"
    )
    if blocks.padded > blocks.dimension:
        assert (blocks.count - 1) * longest < blocks.dimension <= blocks.count * longest, "padded ones are the fewest"


@given(axes)
def test_padding_is_bounded(axis: tuple[int, int, int]) -> None:
    _, unit, block_size = axis
    blocks = cut(*axis)
    run = unit if unit <= block_size else 1
    assert blocks.padded - blocks.dimension < blocks.size
    assert blocks.padded - blocks.dimension < run * blocks.count


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(0, 10))
def test_a_block_as_long_as_the_axis_is_the_axis(channels: int, unit: int, more: int) -> None:
    dimension = channels * unit
    assert cut(channels, unit, dimension + more) == Blocks(dimension, 1, dimension)
