"""THOR's cost model: work and memory of a layer by hand, and ResNet-50's totals by block size."""

import pytest

from resnetboost_trainer.optim.thor import cost
from resnetboost_trainer.optim.thor.cost import Cost, Shape

RESNET50 = cost.resnet50(1001)


def test_one_layer_by_hand() -> None:
    # A is 12 x 12 and G is 9 x 9, twice; 7 samples of 25 positions.
    layer = Shape("conv", outputs=9, channels=3, unit=4, positions=25, groups=2)
    assert cost.cost([layer], cost.whole, 7) == Cost(
        inversion=2 * (12**3 + 9**3),
        covariances=2 * 2 * 7 * 25 * (12**2 + 9**2),
        preconditioning=2 * 2 * (12**2 * 9 + 9**2 * 12),
        factor_bytes=2 * 4 * (12**2 + 9**2),
    )
    # Blocks of at most 8: two of 8 (two channels each, one of the channels padding) and two of 5.
    assert cost.cost([layer], cost.equal(8), 7) == Cost(
        inversion=2 * (2 * 8**3 + 2 * 5**3),
        covariances=2 * 2 * 7 * 25 * (2 * 8**2 + 2 * 5**2),
        preconditioning=2 * 2 * (2 * 8**2 * 9 + 2 * 5**2 * 12),
        factor_bytes=2 * 4 * (2 * 8**2 + 2 * 5**2),
    )
    assert cost.training([layer], 7) == 3 * 2 * 7 * 2 * 9 * 12 * 25


def test_costs_of_layers_add_up() -> None:
    together = cost.cost(RESNET50, cost.whole, 2)
    apart = [cost.cost([shape], cost.whole, 2) for shape in RESNET50]
    assert together.inversion == sum(each.inversion for each in apart)
    assert together.covariances == sum(each.covariances for each in apart)


def test_resnet50() -> None:
    assert len(RESNET50) == 54
    assert max(shape.columns for shape in RESNET50) == 4608
    assert max(shape.outputs for shape in RESNET50) == 2048
    # torchvision's ResNet-50 has 25.557 M parameters with 1000 classes: 53 120 of them in BN, and 1000 biases.
    assert sum(shape.outputs * shape.columns for shape in cost.resnet50(1000)) == 25_557_032 - 53_120 - 1000
    assert cost.training(RESNET50, 32) == pytest.approx(785.1e9, rel=1e-4)


def test_whole_factors_of_resnet50() -> None:
    one = cost.cost(RESNET50, cost.whole, 32)
    assert one.inversion == pytest.approx(452.8e9, rel=1e-4)
    assert one.covariances == pytest.approx(1605.1e9, rel=1e-4)
    assert one.preconditioning == pytest.approx(156.2e9, rel=1e-3)
    assert one.factor_bytes / 2**20 == pytest.approx(586.9, rel=1e-4)


def test_the_vendors_blocks_of_resnet50() -> None:
    one = cost.cost(RESNET50, cost.vendors, 32)
    assert one.inversion == pytest.approx(1.339e9, rel=1e-3)
    assert one.covariances == pytest.approx(253.3e9, rel=1e-3)
    assert one.preconditioning == pytest.approx(13.02e9, rel=1e-3)
    assert one.factor_bytes / 2**20 == pytest.approx(40.03, rel=1e-3)


def test_equal_blocks_of_resnet50_cost_less_than_the_vendors() -> None:
    ours, theirs = cost.cost(RESNET50, cost.equal(128), 32), cost.cost(RESNET50, cost.vendors, 32)
    assert ours.inversion / theirs.inversion == pytest.approx(0.711, abs=0.001)
    assert ours.covariances / theirs.covariances == pytest.approx(0.842, abs=0.001)
    assert ours.preconditioning / theirs.preconditioning == pytest.approx(0.892, abs=0.001)
    assert ours.factor_bytes / theirs.factor_bytes == pytest.approx(0.816, abs=0.001)


def test_equal_blocks_of_144_are_much_smaller_than_the_vendors() -> None:
    # The input of a layer in ResNet-20's first group, 16 channels of 3 x 3.
    ours, theirs = cost.equal(128)(16, 9), cost.vendors(16, 9)
    assert (ours, theirs) == ([72, 72], [128, 16])
    assert sum(size**2 for size in ours) / sum(size**2 for size in theirs) == pytest.approx(0.623, abs=0.001)


@pytest.mark.parametrize(
    ("ranks", "factors_whole", "factors_of_blocks", "blocks"),
    [
        (2, 2.00, 2.00, 2.00),
        (4, 4.00, 4.00, 4.00),
        (8, 4.63, 7.98, 7.98),
        (16, 4.63, 15.96, 15.96),
        (32, 4.63, 17.73, 31.92),
    ],
)
def test_balance_of_resnet50(ranks: int, factors_whole: float, factors_of_blocks: float, blocks: float) -> None:
    assert cost.speedup(RESNET50, cost.whole, ranks) == pytest.approx(factors_whole, abs=0.005)
    assert cost.speedup(RESNET50, cost.vendors, ranks, by_factor=True) == pytest.approx(factors_of_blocks, abs=0.005)
    assert cost.speedup(RESNET50, cost.vendors, ranks) == pytest.approx(blocks, abs=0.005)


def test_the_table_has_a_line_for_each_way_to_cut() -> None:
    lines = cost.table(RESNET50, 32, 128).splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["whole factors", "MindSpore, 128", "ours, 128"]
    assert lines[1].split()[2:] == ["452.789", "1605.1", "156.2", "586.9", "4.6", "4.6"]
    assert lines[2].split()[2:] == ["1.339", "253.3", "13.0", "40.0", "8.0", "31.9"]
