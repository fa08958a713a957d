"""Another number of ranks for an existing run: fewer devices, the same training.

`device.count` of the run's first job file defines its training: the global batch and which samples each micro batch
has. A later run of the folder may use any number of ranks that divides it; each then does the work of several.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from resnetboost_operator import readable
from resnetboost_operator.errors import UserError

Manifest = dict[str, Any]

_OTHERWISE = "choose another folder with --out, or start over with --fresh"


def of_same_training(kept: Mapping[str, Any], job: Manifest) -> Manifest:
    """Return the job with the numbers of ranks that define the `kept` run.

    Raises UserError if the run cannot go on with those of the job.
    """
    defined, asked = kept["spec"]["device"]["count"], job["spec"]["device"]["count"]
    if asked == defined:
        return job
    counts = {stage["name"]: stage.get("deviceCount") for stage in kept["spec"]["stages"]}
    stages = [
        _with_count(stage, counts.get(stage["name"], stage.get("deviceCount"))) for stage in job["spec"]["stages"]
    ]
    _check(stages, defined, asked)
    device = job["spec"]["device"] | {"count": defined}
    return job | {"spec": job["spec"] | {"device": device, "stages": stages}}


def note(defined: int, asked: int) -> str:
    """Return a sentence about a run on another number of ranks."""
    does = "does" if asked == 1 else "do"
    return f"{readable.plural(asked, 'rank')} {does} the work of the {defined} that define this run"


def _check(stages: Iterable[Manifest], defined: int, asked: int) -> None:
    field = f"device.count: {asked}"
    if defined % asked:
        *fewer, most = [str(number) for number in range(1, defined + 1) if defined % number == 0]
        possible = f"{', '.join(fewer)} or {most}" if fewer else most
        whole = readable.plural(defined, "rank")
        reason = f"the run in this folder is defined by {whole}, whose work cannot be divided evenly among {asked}"
        raise UserError(f"{field}: {reason}; use {possible}, {_OTHERWISE}")
    for stage in stages:
        count = stage.get("deviceCount", defined)
        if stage.get("algorithm") == "Adasum" and count > asked:
            reason = f"stage {stage['name']} has the algorithm Adasum, whose sums depend on the number of ranks"
            raise UserError(f"{field}: {reason}, {count} in this folder; use {defined}, {_OTHERWISE}")
        if stage.get("syncBatchNorm") and count > asked:
            reason = f"stage {stage['name']} has syncBatchNorm, which needs the images of all {count} ranks at once"
            raise UserError(f"{field}: {reason}; use {defined}, {_OTHERWISE}")


def _with_count(stage: Manifest, count: int | None) -> Manifest:
    others = {name: value for name, value in stage.items() if name != "deviceCount"}
    return others if count is None else others | {"deviceCount": count}
