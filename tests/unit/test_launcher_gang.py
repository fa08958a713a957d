"""The leader's view of its gang: each launcher speaks for itself alone."""

import pytest

from resnetboost_api.launcher import NAMED_RANKS, RankEnd, RankReport
from resnetboost_trainer.launcher.gang import GangView


def end(index: int, attempt: int = 1, time: float = 0.0, code: int = 137) -> RankEnd:
    return RankEnd(index, attempt, code, "", time)


def test_ranks_of_the_attempt_are_counted_and_the_first_to_end_comes_first() -> None:
    view = GangView(4)
    view.heard(0, RankReport(0, 1, running=True))
    view.heard(1, RankReport(1, 1, end=end(1, time=5.0)))
    view.heard(2, RankReport(2, 1, end=end(2, time=4.0)))
    view.heard(3, RankReport(3, 0, running=True))
    report = view.report(1)
    assert (report.running, report.connected) == (1, 4)
    assert [found.index for found in report.ended] == [2, 1]


def test_a_launcher_that_is_lost_counts_no_more_until_it_reports_again() -> None:
    view = GangView(2)
    view.heard(0, RankReport(0, 1, running=True))
    view.heard(1, RankReport(1, 1, running=True))
    view.lost(1)
    assert (view.report(1).running, view.report(1).connected) == (1, 1)
    view.heard(1, RankReport(1, 1, running=True))
    assert view.report(1).connected == 2


@pytest.mark.parametrize(
    ("index", "report"),
    [
        (1, RankReport(0, 1)),
        (4, RankReport(4, 1)),
        (1, RankReport(1, 1, end=end(0))),
        (1, RankReport(1, 1, end=end(1, attempt=2))),
    ],
    ids=["of another", "beyond the gang", "with another's end", "with another attempt's end"],
)
def test_a_report_about_anything_else_is_refused(index: int, report: RankReport) -> None:
    view = GangView(4)
    with pytest.raises(ValueError, match="launcher"):
        view.heard(index, report)
    assert view.report(1).connected == 0


def test_a_report_has_a_bounded_number_of_messages_and_all_ends() -> None:
    view = GangView(100)
    for index in range(100):
        view.heard(index, RankReport(index, 1, end=end(index, time=float(index))))
    assert len(view.report(1).ended) == NAMED_RANKS
    assert view.report(1).others_ended == tuple((index, 137) for index in range(NAMED_RANKS, 100))


def test_whoever_may_explain_the_others_comes_first_though_its_clock_is_ahead() -> None:
    view = GangView(20)
    for index, code in enumerate([14] * 17 + [13, 0, 137]):
        view.heard(index, RankReport(index, 1, end=end(index, time=index, code=code)))
    report = view.report(1)
    assert [found.index for found in report.ended] == [17, 19, *range(14)]
    assert report.others_ended == ((14, 14), (15, 14), (16, 14), (18, 0))
