"""On how many devices a stage may run: any number that divides those it is defined by. It is the same training then.

Each rank does the work of several neighbouring virtual ranks (docs/elastic.md). Pure.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job


def defined(job: Job, stage: Stage) -> int:
    """By how many ranks the stage is defined: its virtual ranks."""
    return job.virtual_ranks.get(stage.name, stage.device_count)


def sizes(job: Job, stage: Stage) -> tuple[int, ...]:
    """The numbers of ranks that the stage may have, ascending. Nodes with `perNode` devices are used whole; sums of
    Adasum depend on the number, and synchronized batch normalization needs all images at once.
    """
    whole, per_node = defined(job, stage), job.spec.device.per_node or 1
    if stage.algorithm == "Adasum" or stage.sync_batch_norm:
        return (whole,)
    unit = per_node if whole >= per_node else 1
    return tuple(number for number in range(1, whole + 1) if whole % number == 0 and number % unit == 0)


def largest(job: Job, stage: Stage, most: int) -> int:
    """The largest number of ranks that the stage may have and that is at most `most`; else the smallest it may have."""
    possible = sizes(job, stage)
    return max((number for number in possible if number <= most), default=possible[0])


def resized(job: Job, most: int, fixed: Mapping[str, int] = {}) -> Job:
    """The job with each stage on as many ranks as it may have up to `most`; stages in `fixed` have that number."""
    counts = {stage.name: fixed.get(stage.name) or largest(job, stage, most) for stage in job.spec.stages}
    whole = {stage.name: defined(job, stage) for stage in job.spec.stages}
    stages = tuple(replace(stage, device_count=counts[stage.name]) for stage in job.spec.stages)
    fewer = {name: count for name, count in whole.items() if count != counts[name]}
    return replace(job, spec=replace(job.spec, stages=stages), virtual_ranks=fewer)
