"""What the leader knows of its gang: who is connected, and what each launcher reported last."""

from resnetboost_api.launcher import GangReport, RankReport, gang_report


class GangView:
    """The launchers of one gang, by index. Reports are claims of the gang's own pods: each only about itself."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._reports: dict[int, RankReport] = {}

    def heard(self, index: int, report: RankReport) -> None:
        """Take the report of the launcher of that index. Raises ValueError for one about anything else."""
        end = report.end
        if report.index != index or not 0 <= index < self._size:
            raise ValueError(f"launcher {index} of {self._size} reports as {report.index}")
        if end is not None and (end.index, end.attempt) != (index, report.attempt):
            raise ValueError(f"launcher {index} reports the end of rank {end.index}, attempt {end.attempt}")
        self._reports[index] = report

    def lost(self, index: int) -> None:
        """The launcher of that index is not connected any more."""
        self._reports.pop(index, None)

    def report(self, attempt: int) -> GangReport:
        """For the operator. Reports about other attempts count for nothing but the connection."""
        current = [report for report in self._reports.values() if report.attempt == attempt]
        ends = [report.end for report in current if report.end is not None]
        running = sum(report.running for report in current)
        return gang_report(attempt, running, len(self._reports), ends)
