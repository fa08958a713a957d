"""Verdicts of the preflight: who is slow, who computes wrongly, and which ranks are measured together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api.status import PreflightResult, Suspect
from resnetboost_trainer.preflight import conductor, links, verdict, workload
from resnetboost_trainer.preflight.verdict import Measurement


def measured(
    compute: float = 100.0,
    link: float = 0.0,
    node: float = 0.0,
    digests: tuple[int, ...] = (7, 8),
    steady: bool = True,
    norm: float = 1000.0,
) -> Measurement:
    return Measurement(index=0, compute=compute, link=link, node=node, digests=digests, steady=steady, norm=norm)


def reasons(found: tuple[verdict.Suspicion, ...]) -> dict[int, str]:
    return {one.rank: one.reason for one in found}


class TestSlow:
    def test_a_rank_below_the_share_of_the_median_is_named_with_its_share(self) -> None:
        (found,) = verdict.slow([measured(rate) for rate in (100, 79, 100)], 0.8, 0.7)
        assert (found.rank, found.reason, found.share) == (1, "SlowCompute", 0.79)

    def test_a_rank_at_the_share_itself_is_not(self) -> None:
        assert verdict.slow([measured(rate) for rate in (100, 80, 100)], 0.8, 0.7) == ()

    def test_the_slowest_comes_first_and_each_rank_once(self) -> None:
        rates = [(100, 50), (40, 10), (100, 50), (60, 50), (100, 5), (100, 50), (100, 50)]
        found = verdict.slow([measured(compute, link) for compute, link in rates], 0.8, 0.7)
        assert [(one.rank, one.reason) for one in found] == [
            (4, "SlowCollective"),
            (1, "SlowCompute"),
            (3, "SlowCompute"),
        ]

    @given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20), st.floats(0.01, 1))
    def test_most_ranks_are_never_slow_and_the_fastest_never_is(self, rates: list[float], below: float) -> None:
        found = reasons(verdict.slow([measured(rate) for rate in rates], below, below))
        assert len(found) <= len(rates) / 2
        assert rates.index(max(rates)) not in found

    @given(st.integers(1, 12), st.floats(0.1, 1e3))
    def test_a_faster_generation_of_devices_changes_nothing(self, size: int, factor: float) -> None:
        rates = [float(100 - 7 * rank) for rank in range(size)]
        one = verdict.slow([measured(rate) for rate in rates], 0.8, 0.7)
        assert reasons(one) == reasons(verdict.slow([measured(rate * factor) for rate in rates], 0.8, 0.7))

    def test_only_a_rank_that_is_slow_both_times_stays(self) -> None:
        first = verdict.slow([measured(rate) for rate in (100, 50, 60, 100, 100)], 0.8, 0.7)
        second = verdict.slow([measured(rate) for rate in (70, 100, 50, 100, 100)], 0.8, 0.7)
        assert reasons(verdict.twice(first, second)) == {2: "SlowCompute"}


class TestWrong:
    KNOWN = (7, 8)

    def test_equal_results_are_right_whatever_is_known(self) -> None:
        assert verdict.wrong([measured(digests=(1, 2))] * 4, self.KNOWN) == ()

    @pytest.mark.parametrize("others", [(7, 8), (1, 8)])
    def test_the_minority_is_wrong_even_with_the_known_result(self, others: tuple[int, int]) -> None:
        found = verdict.wrong(
            [measured(digests=others), measured(digests=(5, 8)), measured(digests=others)], self.KNOWN
        )
        assert reasons(found) == {1: "WrongResult"}

    def test_of_two_ranks_the_one_without_the_known_result_is_wrong(self) -> None:
        assert reasons(verdict.wrong([measured(digests=(7, 9)), measured()], self.KNOWN)) == {0: "WrongResult"}

    def test_of_two_ranks_that_differ_from_what_is_known_nobody_can_tell(self) -> None:
        found = verdict.wrong([measured(digests=(1, 8)), measured(digests=(2, 8))], self.KNOWN)
        assert reasons(found) == {0: "DisagreeingResult", 1: "DisagreeingResult"}

    def test_one_rank_is_compared_with_itself_only(self) -> None:
        assert verdict.wrong([measured(digests=(1, 2))], self.KNOWN) == ()
        assert reasons(verdict.wrong([measured(steady=False)], self.KNOWN)) == {0: "UnsteadyResult"}

    @pytest.mark.parametrize("norm", [1002.0, 998.0, float("nan"), float("inf"), 0.0])
    def test_a_norm_beyond_rounding_is_wrong(self, norm: float) -> None:
        found = verdict.wrong([measured(), measured(norm=norm), measured(norm=1000.4)], self.KNOWN)
        assert reasons(found) == {1: "WrongResult"}

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 3))
    def test_ranks_with_the_same_result_share_their_verdict(self, digests: list[int], known: int) -> None:
        found = reasons(verdict.wrong([measured(digests=(one,)) for one in digests], (known,)))
        assert len({(one, found.get(rank)) for rank, one in enumerate(digests)}) == len(set(digests))


class TestLinks:
    @given(st.integers(1, 40), st.integers(1, 8))
    def test_rounds_are_apart_and_no_rank_has_more_than_two_links(self, nodes: int, per_node: int) -> None:
        rounds = links.rounds(nodes * per_node, per_node)
        for pairs in rounds:
            members = [rank for pair in pairs for rank in pair]
            assert len(members) == len(set(members))
        ends = [rank for pairs in rounds for pair in pairs for rank in pair]
        assert all(ends.count(rank) <= 2 for rank in range(nodes * per_node))

    @given(st.integers(3, 40))
    def test_a_slow_link_of_one_rank_leaves_every_other_rank_a_good_one(self, size: int) -> None:
        pairs = [pair for round_ in links.rounds(size, 1) for pair in round_]
        for slow in range(size):
            good = {rank for pair in pairs for rank in pair if slow not in pair}
            assert good == set(range(size)) - {slow}

    def test_links_between_nodes_are_not_mixed_with_those_inside(self) -> None:
        pairs = [pair for round_ in links.rounds(8, 2) for pair in round_]
        assert all(low // 2 != high // 2 and low % 2 == high % 2 for low, high in pairs)
        assert links.node_of(5, 8, 2) == (4, 5)

    def test_two_ranks_have_nothing_to_compare_with(self) -> None:
        assert links.rounds(2, 1) == () == links.rounds(1, 1)


class TestWorkload:
    @pytest.mark.parametrize("rows", [rows for rows, _ in workload.KNOWN])
    def test_products_are_exact_in_any_order_of_summing(self, rows: int) -> None:
        left, right = workload.matrices(rows)
        largest = float(np.abs(left).max() * np.abs(right).max()) * workload.DEPTH
        assert largest < 2**24

    def test_the_known_digests_are_those_of_integer_arithmetic(self) -> None:
        rows, count = 768, 8
        left, right = (matrix.astype(np.float64) for matrix in workload.matrices(rows))  # exact up to 2^53
        drawn, weights = workload.images(count)
        padded = np.pad(drawn, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
        side = workload.SIDE
        convolved = sum(
            np.einsum(
                "nchw,oc->nohw",
                padded[:, :, row : row + side, column : column + side],
                weights[:, :, row, column].astype(np.float64),
                optimize=True,
            )
            for row in range(3)
            for column in range(3)
        )
        assert workload.KNOWN[rows, count] == (workload.digest(left @ right), workload.digest(np.asarray(convolved)))

    @given(st.integers(0, 99), st.integers(0, 22))
    def test_a_flipped_bit_that_matters_changes_the_digest(self, place: int, bit: int) -> None:
        values = workload.integers((100,), 127, 5) * 3000 + 2**20
        other = values.copy()
        other.view(np.uint32)[place] ^= np.uint32(1 << bit)
        changed = bool((np.rint(values) != np.rint(other)).any())
        assert (workload.digest(values) != workload.digest(other)) == changed


@pytest.mark.parametrize("suspects", [(), (Suspect(index=0, rank=0, reason="UnsteadyResult"),)], ids=["steady", "not"])
def test_one_rank_is_called_steady_only_if_it_was(suspects: tuple[Suspect, ...]) -> None:
    found = PreflightResult(compute_median=17.2, compute_lowest=17.2, slowest_rank=0, suspects=suspects)
    said = conductor.summary(found)
    assert "one rank has nothing to compare with" in said
    assert ("the same every time" in said) == (not suspects)
