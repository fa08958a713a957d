"""Makes a run folder of what a job's checkpoints in object storage say: its stages, and the metrics of its attempts."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from resnetboost_api.names import API_VERSION, KIND
from resnetboost_api.stage import Stage
from resnetboost_api.status import Progress, StageStatus, Status
from resnetboost_operator import yamltext
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import metricsfile
from resnetboost_operator.runs.metricsfile import Measured
from resnetboost_operator.runs.runfolder import RunFolder, write

_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")


class Saved(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The last checkpoint of a stage, by its manifest; `config` is what its rank was configured with."""

    job_uid: str
    job_namespace: str = ""
    job_name: str = ""
    stage: str
    attempt: int
    step: int
    steps_per_epoch: int
    world_size: int
    ranks: int = 0
    stopped_early: Any = None
    config: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """True if the stage has ended."""
        return self.stopped_early is not None or self.step >= self.steps_per_epoch * self.config.get("epochs", 0)


def read(path: Path) -> list[Saved]:
    """Read the stages of a job, the earliest first. Raises UserError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Saved])
        if not found or not all({"model", "dataset", "device"} <= saved.config.keys() for saved in found):
            raise UserError("its checkpoints are of a version that did not record the job; there can be no report")
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: it is damaged: {error}") from None
    return found


def folder_name(saved: Sequence[Saved]) -> str:
    """Name of a folder for the job's report; the checkpoints may be anybody's."""
    name = saved[-1].job_name
    return name if _NAME.fullmatch(name) else "job"


def complete(folder: RunFolder, saved: Sequence[Saved]) -> None:
    """Write job and status of the run, whose metrics are in the folder."""
    write(folder.job_file, yamltext.dump(job(saved)))
    folder.write_status(status(saved, metricsfile.measured(metricsfile.rows(folder))))


def job(saved: Sequence[Saved]) -> dict[str, Any]:
    """The job as far as its stages were begun; what they do not say has its default."""
    last = saved[-1]
    device = {"type": last.config["device"]["type"], "count": max(each.ranks or each.world_size for each in saved)}
    spec = {"device": device, "model": last.config["model"], "dataset": last.config["dataset"]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": last.job_name, "namespace": last.job_namespace, "uid": last.job_uid},
        "spec": {**spec, "stages": [_stage(each) for each in saved]},
    }


def _stage(saved: Saved) -> dict[str, Any]:
    names = {field.encode_name for field in msgspec.structs.fields(Stage)} - {"startFrom"}
    return {"name": saved.stage} | {name: value for name, value in saved.config.items() if name in names and value}


def status(saved: Sequence[Saved], measured: Measured) -> Status:
    """What is known of the run by its checkpoints: no failed attempts, and no end of a job that goes on elsewhere."""
    last = saved[-1]
    stages = tuple(
        StageStatus(
            name=each.stage,
            state="Complete" if each.is_complete else "Running",
            attempts=each.attempt + 1,
            checkpoint_step=each.step,
            top1=_last(measured, each.stage, "top1"),
            top5=_last(measured, each.stage, "top5"),
            test_loss=_last(measured, each.stage, "test_loss"),
        )
        for each in saved
    )
    progress = Progress(state="Training", stage=last.stage, attempt=last.attempt, step=last.step)
    return Status(
        phase="Complete" if last.is_complete else "Running", stage=last.stage, stages=stages, progress=progress
    )


def _last(measured: Measured, stage: str, name: str) -> float | None:
    values = zip(measured.stages, measured.column(name), strict=True)
    return next((value for of, value in reversed(list(values)) if of == stage and value == value), None)
