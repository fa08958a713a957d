"""A job of the cluster as the screens show it, with text that is safe for a terminal."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api.status import Progress, StageStatus, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.cli.status.silence import Silence
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.controller import jobs
from resnetboost_operator.job import Job
from resnetboost_operator.observed import pods

# Colours in a log (ECMA-48, CSI and OSC) are removed; other control characters are shown escaped.
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
UNSEEN = "no operator has looked at the job yet"
UNKNOWN = "the job and this resnetboost are of different versions, not everything is shown: use the newer one"
DELETING = "the job is being deleted"


class JobView(msgspec.Struct, frozen=True):
    """One version of a job; `created` in unix seconds, `manifest` as from the API server.

    `job` is None if CRD and program are of different versions; `suspend` is the job's setting; `silence` is set if no
    operator seems to look after it.
    """

    uid: str
    namespace: str
    name: str
    created: float
    deleting: bool
    suspend: bool
    job: Job | None
    status: Status
    manifest: dict[str, Any]
    silence: Silence | None = None

    @property
    def stage(self) -> StageStatus | None:
        """The stage that runs now or ran last."""
        return next((found for found in self.status.stages if found.name == self.status.stage), None)

    @property
    def progress(self) -> Progress | None:
        """The progress of that stage."""
        return run_text.progress_of(self.stage, self.status) if self.stage is not None else None

    @property
    def algorithms(self) -> dict[str, str]:
        """Algorithms by stage name."""
        return {stage.name: stage.algorithm for stage in self.job.spec.stages} if self.job is not None else {}

    @property
    def queue(self) -> str:
        """Kueue's LocalQueue that admits the job; '' without."""
        return self.job.queue if self.job is not None else ""

    @property
    def is_over(self) -> bool:
        """True if the job will not change any more."""
        return statuses.is_terminal(self.status)


def read(obj: Mapping[str, Any]) -> JobView:
    """Read a job."""
    manifest = dict(obj)
    record = jobs.read(_legible(manifest))
    metadata = manifest["metadata"]
    return JobView(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        created=pods.seconds(metadata.get("creationTimestamp")),
        deleting=record.deleting,
        suspend=bool((manifest["spec"].get("runPolicy") or {}).get("suspend")),
        job=record.job,
        status=record.status,
        manifest=manifest,
    )


def legible(text: str) -> str:
    """Text without colours, cursor movement or reversed direction. Lines stay lines."""
    plain = _COLOURS.sub("", text).replace("\t", " ").replace("\r\n", "\n")
    return "\n".join(map(readable.printable, plain.split("\n")))


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, Mapping):
        return {key: _legible(inner) for key, inner in value.items()}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value


def why(view: JobView, now: float | None = None) -> str:
    """Why the job does not train, in a sentence; '' if it does or is complete. `now` None leaves durations out."""
    status = view.status
    if view.silence is not None:
        return view.silence.sentence(now)
    if view.deleting:
        return DELETING
    if not status.stage:
        return UNKNOWN if view.job is None and view.manifest.get("status") else UNSEEN
    if statuses.is_true(status, "Complete"):
        return ""
    failed, running = statuses.condition(status, "Failed"), statuses.condition(status, "Running")
    if failed is not None and failed.status == "True":
        return _line(failed.message)
    if status.phase == "Queued":
        sentence = _line(running.message) if running is not None else ""
        return ": ".join(filter(None, [run_text.queued(status, now, view.queue), sentence]))
    if running is not None and (running.status != "True" or running.reason != "Training"):
        return _line(running.message)
    return UNKNOWN if view.job is None else ""


def _line(message: str) -> str:
    return " ".join(message.split())
