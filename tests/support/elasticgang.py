"""Trains one stage by attempts of different numbers of ranks, each a gang of real trainer processes."""

import csv
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from resnetboost_api import names
from resnetboost_operator.local import machine
from support import forkserver

TIMEOUT_SECONDS = 300
INTERRUPTED = 16


class Stage:
    """A stage of a job in its own folder; `config` is the trainer's, without an attempt."""

    def __init__(self, folder: Path, config: Mapping[str, Any], count: int, first_attempt: int = 0) -> None:
        """`count` is the number of ranks that the training is defined by."""
        self.folder, self.config, self.count = folder, dict(config), count
        self.first_attempt, self.attempt = first_attempt, first_attempt - 1
        folder.mkdir(parents=True, exist_ok=True)

    def copied(self, folder: Path) -> "Stage":
        """Another stage that goes on from what this one has left so far; its rows are those of its own attempts."""
        shutil.copytree(self.folder, folder)
        return Stage(folder, self.config, self.count, self.attempt + 1)

    def train(self, ranks: int, until: int | None = None) -> int:
        """Run the next attempt on so many ranks, and ask all to stop at a step; return the last one made.

        Without `until` it comes to its end.
        """
        self.attempt += 1
        addresses = machine.Addresses()
        coordinator = f"{addresses.next()}:{names.PORT_COORDINATOR}"
        gang = [self._start(rank, ranks, coordinator, addresses.next()) for rank in range(ranks)]
        try:
            if until is not None:
                self._await(until, gang)
                for process in gang:
                    process.send_signal(signal.SIGTERM)
            codes = [process.wait(TIMEOUT_SECONDS) for process in gang]
        finally:
            for process in gang:
                process.kill()
                process.wait()
            addresses.close()
        assert codes == [0 if until is None else INTERRUPTED] * ranks, self._log(0)
        return self.steps()[-1]

    def rows(self) -> dict[int, dict[str, str]]:
        """The rows of all attempts' metrics by step; a later attempt's replace those of an earlier one."""
        found = {}
        for attempt in range(self.first_attempt, self.attempt + 1):
            with self._metrics(attempt).open() as file:
                found.update({int(row["step"]): row for row in csv.DictReader(file)})
        return found

    def steps(self) -> list[int]:
        """The steps made so far, in order."""
        return sorted(self.rows())

    def column(self, name: str) -> list[float]:
        """A column of the metrics, over the steps."""
        rows = self.rows()
        return [float(rows[step][name]) for step in sorted(rows)]

    def newest(self) -> Path:
        """The furthest checkpoint of the last attempt."""
        return max((self._stage / f"attempt-{self.attempt}").glob("step-*"))

    @property
    def _stage(self) -> Path:
        return self.folder / "checkpoints" / str(self.config["job"]["uid"]) / str(self.config["stage"])

    def _metrics(self, attempt: int) -> Path:
        return self._stage / f"attempt-{attempt}" / "metrics.csv"

    def _log(self, rank: int) -> str:
        return self._log_file(rank).read_text()

    def _log_file(self, rank: int) -> Path:
        return self.folder / f"{self.attempt}-{rank}.log"

    def _start(self, rank: int, ranks: int, coordinator: str, address: str) -> subprocess.Popen[bytes]:
        path = self.folder / f"{self.attempt}.yaml"
        virtual = {"virtualRanks": self.count} if ranks != self.count else {}
        path.write_text(yaml.safe_dump(self.config | virtual | {"attempt": self.attempt}))
        variables = {
            names.ENV_RANK: str(rank),
            names.ENV_WORLD_SIZE: str(ranks),
            names.ENV_COORDINATOR: coordinator if ranks > 1 else "",
            names.ENV_CHECKPOINTS: str(self.folder / "checkpoints") if rank == 0 else "",
            names.ENV_BIND_ADDRESS: address,
            "OMP_NUM_THREADS": "1",
        }
        command = forkserver.command("-m", "resnetboost_trainer", str(path))
        with self._log_file(rank).open("wb") as log:
            return subprocess.Popen(
                command,
                env=forkserver.environment(os.environ | variables),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _await(self, step: int, gang: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        metrics = self._metrics(self.attempt)
        while not metrics.exists() or max(map(int, _steps(metrics)), default=0) < step:
            assert all(process.poll() is None for process in gang), self._log(0)
            assert time.monotonic() < deadline, self._log(0)
            time.sleep(0.02)


def _steps(metrics: Path) -> list[str]:
    return [found for line in metrics.read_text().splitlines()[1:] if (found := line.partition(",")[0]).isdecimal()]
