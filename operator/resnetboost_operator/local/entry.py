"""Checks whether this machine can run a job, and enters the job into its run folder."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from resnetboost_operator import sizes
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.local import environment, machine
from resnetboost_operator.runs import elastic, resumption
from resnetboost_operator.runs.runfolder import RunFolder

Manifest = dict[str, Any]


def check(spec: Manifest) -> None:
    """Refuse a job that this machine cannot run. Raises `UserError`, which names the field to change."""
    check_device(spec, len(machine.usable_cores()), machine.memory_bytes())
    check_room(spec, machine.memory_bytes())
    check_starts(spec)


def enter(folder: RunFolder, manifest: Manifest, fresh: bool, report: Callable[[str], object]) -> Job | None:
    """Enter the job into its locked run folder and return it as it is to run; None if the run is complete already.

    `fresh` deletes an earlier run first. `report` is called with a sentence about each change of a resumed run.
    """
    ranks = manifest["spec"]["device"]["count"]
    if fresh or folder.is_barren():
        folder.clear(all_files=fresh)
        entered = folder.begin(manifest)
    else:
        if folder.job_file.exists():
            manifest = elastic.of_same_training(folder.read_job(), manifest)
        entered = folder.enter(manifest, report)
    job = parse_job(entered)
    if resumption.is_over(folder.read_status(), [stage.name for stage in job.spec.stages]):
        return None
    if job.spec.device.count != ranks:
        report(elastic.note(job.spec.device.count, ranks))
        job = sizes.resized(replace(job, most_devices=ranks), ranks)
    folder.write_environment(environment.describe())
    return job


def check_device(spec: Manifest, cores: int, memory_bytes: int) -> None:
    """Refuse device types that need a cluster, and suggest what this machine can run."""
    kind, most = spec["device"]["type"], max(1, min(cores, memory_bytes // machine.RANK_BYTES))
    if kind != "CPU":
        problem = f"device.type: {kind} needs a cluster, this machine trains on CPUs"
        count = min(spec["device"]["count"], most)
        larger = [index for index, stage in enumerate(spec["stages"]) if stage.get("deviceCount", 0) > most]
        stages = "".join(f" --set stages[{index}].deviceCount={most}" for index in larger)
        raise UserError(f"{problem}; try --set device.type=CPU --set device.count={count}{stages}")


def check_room(spec: Manifest, memory_bytes: int) -> None:
    """Refuse a gang that needs more memory than this machine has: each rank imports MindSpore."""
    most = max(1, memory_bytes // machine.RANK_BYTES)
    ranks, field = _largest_gang(spec)
    if ranks > most:
        need = f"{ranks} ranks need about {ranks * machine.RANK_BYTES >> 30} GiB of memory"
        raise UserError(f"{field}: {need}, this machine has {memory_bytes >> 30} GiB; use at most {most}")


def check_starts(spec: Manifest) -> None:
    """Refuse `startFrom` of another job: each run has its own folder, without the checkpoints of other jobs."""
    for index, stage in enumerate(spec["stages"]):
        job = stage.get("startFrom", {}).get("jobName")
        if job is not None:
            field = f"stages[{index}].startFrom.jobName: {job}"
            reason = "only jobs on a cluster share a claim, a run on this machine has a folder of its own"
            raise UserError(f"{field}: {reason}; make that job's stage an earlier stage of this one")


def _largest_gang(spec: Manifest) -> tuple[int, str]:
    """The number of ranks of the largest stage, and the field that sets it."""
    given = [
        (stage["deviceCount"], f"stages[{index}].deviceCount") if "deviceCount" in stage else None
        for index, stage in enumerate(spec["stages"])
    ]
    return max(found or (int(spec["device"]["count"]), "device.count") for found in given)
