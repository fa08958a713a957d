"""Synchronized batch normalization on real ranks: what one rank computes with the whole batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import familygradients, rankgang
from support.familygradients import Found

pytestmark = pytest.mark.slow

Left = dict[str, NDArray[Any]]
# Blocks with and without a shortcut of their own, squeeze and excitation between the two normalizations that have to
# wait for each other, and a normalization in a sequence.
CASES = (
    *(f"{kind}.{mode}.ours" for kind in ("bottleneck", "squeezing", "deep") for mode in familygradients.MODES),
    "deep.GRAPH.mindspores",
)


@pytest.mark.parametrize("cases", [("basic.GRAPH.ours",), CASES], ids=["one", "all"])
def test_ranks_compute_what_one_rank_does_with_the_whole_batch(cases: tuple[str, ...], tmp_path: Path) -> None:
    first, second = rankgang.run("syncnormrank.py", 2, tmp_path, CASES=" ".join(cases))
    assert all(np.array_equal(first[key], second[key]) for key in first if ".statistic." in key)
    for case in cases:
        expected = familygradients.slow(case.partition(".")[0])
        assert not familygradients.wrong(found(first, case), expected, familygradients.BOUND), case


def found(left: Left, case: str) -> Found:
    """Loss, gradients and statistics of a case as a rank has written them."""

    def part(kind: str) -> Left:
        prefix = f"{case}.{kind}."
        return {key.removeprefix(prefix): value for key, value in left.items() if key.startswith(prefix)}

    return Found(float(left[f"{case}.loss"][0]), part("gradient"), part("statistic"))
