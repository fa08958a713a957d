"""The folder of a sweep: what it is about, the study's journal, a list of its trials, and the best job."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from resnetboost_api.evaluations import Metric
from resnetboost_operator import yamltext
from resnetboost_operator.cli.view.trial_table import LIST, Listed, TrialRow
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import folderlock
from resnetboost_operator.runs.runfolder import write

Manifest = dict[str, Any]

_OPTIONS = ("name", "namespace", "on", "seed")
_RECORD = "sweep.yaml"
# In the order in which `clear` removes them: the record last, since without it the rest is not known to be a sweep's.
_OURS = ("trials", "study.journal", LIST, "best.yaml", "sweep.png", _RECORD)


class SweepFolder:
    """Paths and files of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file = path / _RECORD
        self.journal = path / "study.journal"
        self.trials_file = path / LIST
        self.best_file = path / "best.yaml"
        self.picture = path / "sweep.png"
        self.trials = path / "trials"

    def run(self, number: int) -> Path:
        """The run folder of a trial on this machine."""
        return self.trials / f"{number:03}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and lock it against other sweeps. Raises `UserError` if one uses it, or it is not a sweep's.

        Other files may be there, but none with the names of a sweep's.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._check_owner()
        with folderlock.held(self.path, "sweep"):
            yield

    def _check_owner(self) -> None:
        if self.record_file.exists():
            self._record()
        elif found := next((name for name in _OURS if (self.path / name).exists()), None):
            raise UserError(f"{self.path} holds {found} but no sweep ({_RECORD} is missing); choose another --out")

    def clear(self) -> None:
        """Remove all files of an earlier sweep, and nothing else."""
        for name in _OURS:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def enter(self, record: Manifest) -> str:
        """Begin a sweep about this, or go on with the one that the folder has; return its uid.

        Raises `UserError` if that is about another job, space or place.
        """
        text = yamltext.dump({"uid": str(uuid.uuid4()), **record})
        if not self.record_file.exists():
            write(self.record_file, text)
        asked, kept = yaml.safe_load(text), self._record()
        for field in record:
            if kept.get(field) != asked[field]:  # as both are read: a tuple is written as a list
                raise UserError(f"{self.path} has a sweep {_differs(field, kept.get(field), asked[field])}")
        return str(kept["uid"])

    def _record(self) -> Manifest:
        found = yamltext.read_mapping(self.record_file)
        if found is None or "uid" not in found:
            raise UserError(f"{self.record_file} is no record of a sweep; choose another folder with --out")
        return found

    def list_trials(self, name: str, metric: Metric, rows: Sequence[TrialRow], best: int | None) -> None:
        """Write the list of the trials."""
        write(self.trials_file, msgspec.json.format(msgspec.json.encode(Listed(name, metric, tuple(rows), best))))


def _differs(field: str, kept: Any, asked: Any) -> str:
    """How the sweep differs, and what to do; the fields in `_OPTIONS` are options of the command."""
    if field in _OPTIONS:
        there, here = f"--{field} {kept}", f"--{field} {asked}"
        return f"with {there}, and this one has {here}; use {there}, another --out, or --fresh"
    return (
        f"with another {field}; give it the same one to go on, choose another folder with --out, or start over with "
        "--fresh"
    )
