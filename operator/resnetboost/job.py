"""A job to load, change, check, run here and apply to a cluster."""

import copy
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from resnetboost.cluster import ClusterJob
from resnetboost.result import Run
from resnetboost_api import names
from resnetboost_api.job import Spec
from resnetboost_api.status import Status
from resnetboost_api.writing import without_defaults
from resnetboost_operator import yamltext
from resnetboost_operator.cli import job_file, overrides
from resnetboost_operator.cli.job_file import JobError
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import data_notes, jobfile
from resnetboost_operator.validation.notes import notes, of_cluster

Manifest = dict[str, Any]


class Job:
    """A ResNetBoostJob, as its file has it. It never changes: `replace` returns another job.

    Whatever is read or run is checked first, and raises `JobError` with the messages of `resnetboost validate`.
    """

    def __init__(self, name: str, spec: Spec) -> None:
        """A job of that name, from structs of `resnetboost_api`."""
        head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}}
        self._written: Manifest = {**head, "spec": _plain(spec)}
        self._place = f"job {name}"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Job":
        """Load a job file. Raises `JobError` if it is no YAML document with fields; its fields are checked later."""
        return cls._read(Path(path), str(path))

    @classmethod
    def parse(cls, text: str) -> "Job":
        """Read the text of a job file, like `load`."""
        return cls._read(text, "the job")

    @classmethod
    def _read(cls, source: Path | str, place: str) -> "Job":
        try:
            return cls._of(jobfile.load(source), place)
        except jobfile.JobFileError as error:
            raise JobError([str(error)]) from None

    @classmethod
    def _of(cls, written: Manifest, place: str) -> "Job":
        job = cls.__new__(cls)
        job._written, job._place = written, place
        return job

    def replace(
        self, changes: Mapping[str, Any] | None = None, /, *, name: str | None = None, spec: Spec | None = None
    ) -> "Job":
        """A job with another spec or name, and then with the changes: values by path, as in `--set`.

        A path is one such as `stages[0].epochs`; what it does not name stays. Raises `UserError` for a path that leads
        nowhere; values are checked with the rest of the job.
        """
        written = copy.deepcopy(self._written) if spec is None else {**self._written, "spec": _plain(spec)}
        given = {"metadata.name": name} if name is not None else {}
        for path, value in {**given, **(changes or {})}.items():
            try:
                written = overrides.assign(written, path, _plain(value))
            except overrides.OverrideError as error:
                raise UserError(f"{path}: {error.reason}") from None
        return self._of(written, self._place)

    def validate(self) -> tuple[str, ...]:
        """Check the job as the API server would, and return notes on settings that are probably not intended.

        Raises `JobError`, whose `problems` has a sentence for each mistake.
        """
        spec = self._checked["spec"]
        return (*notes(spec), *of_cluster(spec), *data_notes.of(spec))

    @cached_property
    def _checked(self) -> Manifest:
        return job_file.checked(self._written, self._place)

    @property
    def name(self) -> str:
        """The name of the job."""
        return str(self._checked["metadata"]["name"])

    @cached_property
    def spec(self) -> Spec:
        """What to train and how, with all defaults. Change it by `msgspec.structs.replace` and `replace(spec=...)`."""
        return msgspec.convert(self._checked["spec"], Spec)

    def to_dict(self) -> Manifest:
        """The job as it is written, without defaults."""
        return copy.deepcopy(self._written)

    def to_yaml(self) -> str:
        """The text of a job file for the command line and kubectl."""
        return yamltext.dump(self._written)

    def __repr__(self) -> str:
        metadata = self._written.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return f"<Job {name}>"

    def __eq__(self, other: object) -> bool:
        return self._written == other._written if isinstance(other, Job) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a dict, whose equality it has

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        fresh: bool = False,
        progress: bool = True,
        on_status: Callable[[Status], object] | None = None,
    ) -> Run:
        """Run or resume the job on this machine, one process per rank, and return its results.

        `out` is the run folder, by default runs/NAME; `fresh` deletes an earlier run in it. `progress` prints lines;
        `on_status` is called with every new status. A run that fails returns too: see `Run.check`.

        An interrupt (Ctrl-C, or a notebook's stop button) saves a checkpoint and raises KeyboardInterrupt; a second one
        kills. The same call resumes the run. Raises `UserError` for a job or folder that cannot be run here.
        """
        from resnetboost import running

        manifest = job_file.with_absolute_paths(self._checked)
        folder = Path(out) if out is not None else Path("runs") / self.name
        return running.run(manifest, folder, fresh=fresh, progress=progress, on_status=on_status)

    def apply(self, namespace: str | None = None, *, force: bool = False) -> ClusterJob:
        """Create the job in the cluster of the kubeconfig, or update it, as `kubectl apply --server-side` does.

        `namespace` is by default the job's own, or that of the kubeconfig's context. `force` takes over fields that
        somebody else has set. Raises `JobError`, or `UserError` if the cluster refuses it or cannot be reached.
        """
        self._checked  # noqa: B018  # raises for an invalid job, with better messages than the API server's
        return ClusterJob.apply(self._written, namespace, force=force)


def _plain(value: Any) -> Any:
    """A value as a job file has it: structs without defaults, paths as text, numbers of numpy as Python's."""
    if isinstance(value, msgspec.Struct):
        return _plain(without_defaults(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if type(value).__module__ == "numpy" else value
