"""Adasum on real ranks, for every supported number of ranks, against the definition in float64."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from support import adasumreference, rankgang
from support.adasumreference import Array, Reference

pytestmark = pytest.mark.slow

# Each gang runs all of its cases in one start, because a start takes seconds.
GANGS = [1, 2, 3, 4, 5, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (6, 7, 8, 16))]
MANY = [1, 7, 1, 1000, 33, 8193, 2, 20001]
LENGTH, HEAD = 437, 400

Floats = NDArray[np.float32]


class Case(msgspec.Struct, frozen=True):
    """Tensors summed together, by name, (ranks, length) each."""

    tensors: dict[str, NDArray[Any]]
    per_node: int = 1

    @property
    def sizes(self) -> list[int]:
        return [rows.shape[1] for rows in self.tensors.values()]

    @property
    def values(self) -> NDArray[Any]:
        return np.concatenate(list(self.tensors.values()), axis=1)

    def reference(self) -> Reference:
        return Reference(adasumreference.node_means(self.values, self.per_node), self.sizes)


class Result(msgspec.Struct, frozen=True):
    """Results of the ranks: `whole` and `mean` (ranks, length), `told` (ranks, 3)."""

    whole: Floats
    mean: Floats
    told: Array
    seconds: list[dict[str, float]]


class Gang(msgspec.Struct, frozen=True):
    """A gang's cases and results."""

    ranks: int
    cases: dict[str, Case]
    results: dict[str, Result]
    refused: dict[str, list[str]]

    def error(self, name: str) -> float:
        """Error of a case against the definition; 1 is the limit."""
        case = self.cases[name]
        return adasumreference.error(self.results[name].whole[0], case.reference().sum, case.sizes)

    def given(self, tensor: str, case: str = "properties") -> NDArray[Any]:
        return self.cases[case].tensors[tensor]

    def sum(self, tensor: str, case: str = "properties") -> Floats:
        """Sum of one tensor of a case."""
        parts = np.split(self.results[case].whole[0], np.cumsum(self.cases[case].sizes)[:-1])
        return parts[list(self.cases[case].tensors).index(tensor)]


def cases_of(ranks: int) -> Iterator[tuple[str, Case]]:
    """Adasum works per tensor, so a property of one vector is tested as one of several tensors in a sum."""
    random = Random(ranks)
    for sizes in ([1], [2], [1, 1, 1], [5, 2], [17], [0, 3, 0], MANY):
        yield f"tensors of {sizes}", random.case(sizes)
    for per_node in per_nodes(ranks):
        for sizes in ([1], [5, 2], MANY):
            yield f"nodes of {per_node}, tensors of {sizes}", random.case(sizes, per_node)
    tensors = properties(random)
    yield "properties", Case(tensors)
    for name in ("orthonormal", "parallel", "1, 2 and 6", "identical", "nothing"):
        yield name, Case({name: tensors[name]})
    magnitudes = {"tiny": [1e-7], "huge": [5e3], "mixed": [1e-7, 5e3]}
    halves = {name: random.normal(LENGTH) * column(every, ranks) for name, every in magnitudes.items()}
    yield "half precision", Case({name: rows.astype(np.float16) for name, rows in halves.items()})
    yield "uneven nodes", random.case([5], per_node=next(k for k in itertools.count(2) if ranks % k))


class Random:
    """Random vectors of that many ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.generator = ranks, np.random.default_rng(ranks)

    def normal(self, length: int) -> Floats:
        """Normal vectors of different lengths with a common component."""
        noise = self.generator.standard_normal((self.ranks, length)) * self.generator.uniform(0.5, 2, (self.ranks, 1))
        return (self.generator.standard_normal(length) + noise).astype(np.float32)

    def case(self, sizes: list[int], per_node: int = 1) -> Case:
        """Short tensors have values of one sign: opposed ones would leave only the rounding of their means."""
        tensors = {str(tensor): self.normal(size) for tensor, size in enumerate(sizes)}
        return Case({name: rows if rows.shape[1] > 3 else abs(rows) for name, rows in tensors.items()}, per_node)


def properties(random: Random) -> dict[str, Floats]:
    ranks, generator = random.ranks, random.generator
    values, one = random.normal(LENGTH), generator.standard_normal(31)
    orthonormal = np.linalg.qr(generator.standard_normal((31, ranks)))[0].T
    lengths, signs = generator.uniform(0.1, 10, (ranks, 1)), generator.choice([-1, 1], (ranks, 1))
    tensors = {
        "orthonormal": orthonormal,
        "orthogonal": orthonormal * lengths,
        "parallel": one * lengths,
        "parallel and opposed": one * lengths * signs,
        "1, 2 and 6": np.outer([1, 2, 6][:ranks] + [0] * (ranks - 3), np.ones(5)),
        "identical": np.tile(one, (ranks, 1)),
        "nothing": np.zeros((ranks, 37)),
        "values": values,
        "head": values[:, :HEAD],
        "tail": values[:, HEAD:],
        "neighbours swapped": values[[rank ^ 1 if ranks % 2 == 0 else rank for rank in range(ranks)]],
        "an eighth": values / 8,
        "a tenth": values * np.float32(0.1),
        "tiny": values * np.float32(1e-30),
        "huge": values * np.float32(1e30),
        "mixed": values * column([1e-20, 1e15], ranks),
        "mixed the other way": values * column([1e15, 1e-20], ranks),
        "all magnitudes": values * column(10.0 ** np.linspace(-30, 30, ranks), ranks),
    }
    for rank in some(ranks):
        own = np.arange(ranks)[:, None] == rank
        tensors |= {f"only of rank {rank}": values * own, f"not of rank {rank}": values * ~own}
    return {name: rows.astype(np.float32) for name, rows in tensors.items()}


def column(magnitudes: ArrayLike, ranks: int) -> Array:
    return np.resize(magnitudes, (ranks, 1))


def some(ranks: int) -> list[int]:
    """The first, a middle and the last element."""
    return sorted({0, ranks // 2, ranks - 1})


def per_nodes(ranks: int) -> list[int]:
    """Ranks per node: all divisors of the number of ranks, and for 16 that of the tutorial."""
    return [8] if ranks == 16 else [per_node for per_node in range(min(2, ranks), ranks + 1) if ranks % per_node == 0]


def start(ranks: int, folder: Path) -> Gang:
    cases = dict(cases_of(ranks))
    arrays: dict[str, Any] = {}
    for name, case in cases.items():
        arrays |= {f"{name}.values": case.values, f"{name}.sizes": case.sizes, f"{name}.per_node": case.per_node}
    np.savez(folder / "cases.npz", **arrays)
    left = rankgang.run("adasumrank.py", ranks, folder)
    refused = {name: [str(rank[f"{name}.refused"]) for rank in left] for name in cases if f"{name}.refused" in left[0]}
    results = {name: _result(left, name) for name in cases if name not in refused}
    return Gang(ranks, cases, results, refused)


def _result(left: list[dict[str, NDArray[Any]]], name: str) -> Result:
    whole, mean, told = (np.stack([rank[f"{name}.{field}"] for rank in left]) for field in ("whole", "mean", "told"))
    return Result(whole, mean, told, [json.loads(str(rank[f"{name}.seconds"])) for rank in left])


@pytest.fixture(scope="module", params=GANGS, ids="{}-ranks".format)
def gang(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gang:
    """One gang at a time; pytest groups the tests by gang."""
    return start(request.param, tmp_path_factory.mktemp("gang"))


def test_the_sum_is_the_definition(gang: Gang) -> None:
    errors = {name: gang.error(name) for name in gang.cases if name.startswith("tensors")}
    assert max(errors.values()) < 1, errors


def test_over_nodes_the_sum_is_the_definition_of_their_means(gang: Gang) -> None:
    errors = {name: gang.error(name) for name in gang.cases if name.startswith("nodes")}
    assert max(errors.values()) < 1, errors
    for name in errors:
        per_node = gang.cases[name].per_node
        means = np.repeat(adasumreference.node_means(gang.cases[name].values, per_node), per_node, axis=0)
        assert adasumreference.error(gang.results[name].mean, means, [means.size]) < 1


def test_all_ranks_have_the_same_bits(gang: Gang) -> None:
    for name, result in gang.results.items():
        assert (result.whole.view(np.uint32) == result.whole[0].view(np.uint32)).all(), name
        assert (result.told.view(np.uint64) == result.told[0].view(np.uint64)).all(), name


def test_cosines_and_gain_are_those_of_the_definition(gang: Gang) -> None:
    for name, result in gang.results.items():
        np.testing.assert_allclose(result.told[0], gang.cases[name].reference().told(), 1e-5, 1e-6, err_msg=name)


def test_orthogonal_vectors_are_added(gang: Gang) -> None:
    for name in ("orthonormal", "orthogonal"):
        assert close(gang.sum(name), gang.given(name).astype(np.float64).sum(0))
    assert gang.results["orthonormal"].told[0, 2] == pytest.approx(gang.ranks, rel=1e-5)


def test_parallel_vectors_are_averaged_after_folding(gang: Gang) -> None:
    for name in ("parallel", "parallel and opposed"):
        values = gang.given(name).astype(np.float64)
        folded = [values[rank :: power_below(gang.ranks)].mean(0) for rank in range(power_below(gang.ranks))]
        assert close(gang.sum(name), np.mean(folded, axis=0))
        if gang.ranks in {1, 2, 4, 8, 16}:
            assert close(gang.sum(name), values.mean(0))
    if gang.ranks == 3:
        assert gang.sum("1, 2 and 6") == pytest.approx(2.75, rel=1e-6)
    if gang.ranks > 1:
        assert gang.results["parallel"].told[0] == pytest.approx(1, rel=1e-5)


def test_identical_vectors_are_their_sum(gang: Gang) -> None:
    assert close(gang.sum("identical"), gang.given("identical")[0])
    assert gang.results["identical"].told[0, 2] == pytest.approx(1, rel=1e-6)


def test_zeros_change_nothing(gang: Gang) -> None:
    assert not gang.sum("nothing").any()
    for rank in some(gang.ranks):
        assert np.array_equal(gang.sum(f"only of rank {rank}"), gang.given("values")[rank])
    assert gang.error("properties") < 1
    assert np.array_equal(gang.results["nothing"].told[0], [np.nan, np.nan, 1], equal_nan=True)


def test_each_tensor_is_summed_by_itself(gang: Gang) -> None:
    by_itself = np.concatenate([gang.sum("head"), gang.sum("tail")])
    differs = np.linalg.norm(by_itself - gang.sum("values")) > 0.005 * np.linalg.norm(by_itself)
    assert differs == (gang.ranks > 1)


def test_the_sum_is_symmetric(gang: Gang) -> None:
    assert close(gang.sum("neighbours swapped"), gang.sum("values"))


def test_the_sum_of_scaled_vectors_is_the_scaled_sum(gang: Gang) -> None:
    assert np.array_equal(gang.sum("an eighth"), gang.sum("values") / 8)
    assert close(gang.sum("a tenth"), gang.sum("values") * np.float64(np.float32(0.1)))


def test_the_sum_is_right_at_every_magnitude(gang: Gang) -> None:
    assert close(gang.sum("tiny") * 1e30, gang.sum("values"))
    assert close(gang.sum("huge") / 1e30, gang.sum("values"))
    for name in ("properties", "half precision"):
        assert np.isfinite(gang.cases[name].values).all() and np.isfinite(gang.results[name].whole).all()
        assert gang.error(name) < 1


def test_one_node_gets_its_mean_and_one_rank_its_own_vector(gang: Gang) -> None:
    alone = [name for name in gang.results if gang.cases[name].per_node == gang.ranks]
    assert alone or gang.ranks == 16
    for name in alone:
        result = gang.results[name]
        assert np.array_equal(result.whole, result.mean), name
        assert np.array_equal(result.told[0], [np.nan, np.nan, 1], equal_nan=True), name
        if gang.ranks == 1:
            assert np.array_equal(result.whole, gang.cases[name].values.astype(np.float32)), name


def test_seconds_are_reported_by_level(gang: Gang) -> None:
    for name, result in gang.results.items():
        per_node = gang.cases[name].per_node
        for rank, seconds in enumerate(result.seconds):
            assert list(seconds) == levels(rank // per_node, gang.ranks // per_node, per_node), (name, rank)
            assert min(seconds.values()) > 0


def levels(node: int, nodes: int, per_node: int) -> list[str]:
    power = power_below(nodes)
    found = ["node"] if per_node > 1 else []
    if node >= power:
        return [*found, "fold", "gather"]
    if node + power < nodes:
        found.append("fold")
    return [*found, *(str(level + 1) for level in range(int(math.log2(power)))), "gather"]


def test_nodes_of_different_sizes_are_refused_on_every_rank(gang: Gang) -> None:
    per_node = gang.cases["uneven nodes"].per_node
    sentence = f"{gang.ranks} ranks are not a whole number of nodes of {per_node}"
    assert gang.refused == {"uneven nodes": [sentence] * gang.ranks}


def power_below(number: int) -> int:
    """The largest power of two that is not above `number`."""
    return 1 << (number.bit_length() - 1)


def close(found: ArrayLike, expected: ArrayLike) -> bool:
    return adasumreference.error(found, expected, [np.size(found)]) < 1
