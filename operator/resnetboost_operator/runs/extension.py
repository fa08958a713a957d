"""More epochs for an existing run: its last stage is extended, or another stage follows it.

A stage is extended if its steps so far would have been the same with more epochs from the start: if its learning rate
does not depend on their number, was still in the warm-up, or (WSD) had not begun to fall. Otherwise the stage stays as
it is, and another one with its settings continues from its weights for the missing epochs.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from resnetboost_api.stage import INDEPENDENT_OF_EPOCHS
from resnetboost_operator import readable
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import schema

Manifest = dict[str, Any]
Stage = Mapping[str, Any]

# Name and epochs of the stages that stand for one of the job file: itself and its continuations.
_Parts = list[tuple[str, int]]

_OTHERWISE = "choose another folder with --out, or start over with --fresh"


class Made(msgspec.Struct, frozen=True):
    """Result of a run so far: epochs of stages with checkpoints, and the names of complete stages."""

    epochs: Mapping[str, float]
    complete: Collection[str] = ()


class Extension(msgspec.Struct, frozen=True):
    """The `kept` job and the new one with the same stages, and sentences about the changes.

    The stages in `goes_on` have more epochs than before, whether they were complete or not.
    """

    kept: Manifest
    job: Manifest
    goes_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    """The stages of a run for one stage of the job file: the stage itself and its continuations.

    `later` are the names of the stages after it; `field` is the field with the requested epochs.
    """

    stages: list[Stage]
    later: list[str]
    field: str

    @property
    def parts(self) -> _Parts:
        return [(stage["name"], stage["epochs"]) for stage in self.stages]

    @property
    def epochs(self) -> int:
        return sum(count for _, count in self.parts)


class _Longer(msgspec.Struct, frozen=True):
    """The result for a group: its last stage is extended, or another stage continues it, with a sentence about it."""

    parts: _Parts
    goes_on: str = ""
    note: str = ""


def extended(kept: Manifest, job: Manifest, made: Made) -> Extension:
    """Extend the `kept` job if `job` differs from it only by more epochs or by further stages at the end.

    Other differences are ignored here and refused elsewhere. Raises `UserError` for a number of epochs that is not
    possible.
    """
    there, requested = kept["spec"]["stages"], job["spec"]["stages"]
    groups = _groups(there, [stage["name"] for stage in requested])
    if [group[0]["name"] for group in groups] != [stage["name"] for stage in requested[: len(groups)]]:
        return Extension(kept, job)
    found = [
        _longer(_group(groups, requested, place), requested[place]["epochs"], made) for place in range(len(groups))
    ]
    further, heads = requested[len(groups) :], [group[0] for group in groups]
    claim, parts = _claim(job) or _claim(kept) or str(job["metadata"]["name"]), [longer.parts for longer in found]
    wanted = _with_stages(job, [*_stages(requested, parts), *further], claim)
    if len(wanted["spec"]["stages"]) > len(there):
        _check_whole(wanted)
    notes = [
        *(longer.note for longer in found if longer.note),
        *(f"stage {stage['name']} follows" for stage in further),
    ]
    return Extension(
        kept=_with_stages(kept, [*_stages(heads, parts), *further], claim),
        job=wanted,
        goes_on=tuple(longer.goes_on for longer in found if longer.goes_on),
        notes=tuple(notes),
    )


def _group(groups: Sequence[list[Stage]], requested: Sequence[Stage], place: int) -> _Group:
    later = [stage["name"] for stages in groups[place + 1 :] for stage in stages]
    later += [stage["name"] for stage in requested[len(groups) :]]
    return _Group(groups[place], later, f"stages[{place}].epochs: {requested[place]['epochs']}")


def _longer(group: _Group, epochs: int, made: Made) -> _Longer:
    """Give a group that many epochs. Raises `UserError`."""
    lacking, (name, so_far) = epochs - group.epochs, group.parts[-1]
    if lacking == 0:
        return _Longer(group.parts)
    _check(group, lacking, made)
    grown = [*group.parts[:-1], (name, so_far + lacking)]
    if name not in made.epochs:
        return _Longer(grown)
    if _has_no_other_past(group.stages[-1], made.epochs[name]):
        return _Longer(grown, name, f"stage {name} goes on, for {epochs} epochs in all")
    laid_out = f"the learning rate of stage {name} is laid out over {readable.plural(so_far, 'epoch')}"
    if group.later:
        reason = f"{laid_out}, and stage {group.later[0]} follows it"
        raise UserError(f"{group.field}: {reason}; give that one more epochs, {_OTHERWISE}")
    following = f"{group.parts[0][0]}-{len(group.parts) + 1}"
    warmup = group.stages[-1]["learningRate"]["warmupEpochs"]
    if warmup >= lacking:
        needed = f"a stage {following} of {readable.plural(lacking, 'epoch')}, because {laid_out}"
        least = group.epochs + math.floor(warmup) + 1
        raise UserError(
            f"{group.field} needs {needed}, and the warm-up takes {warmup:g} of them; use epochs of at least {least}, "
            "or append a stage with a shorter learningRate.warmupEpochs to the job file"
        )
    note = f"{laid_out}: stage {following} follows, from its weights and with its settings, for {lacking} more"
    return _Longer([*group.parts, (following, lacking)], note=note)


def _groups(stages: Sequence[Stage], requested: Sequence[str]) -> list[list[Stage]]:
    """Group the stages of a run by those of a job file; stages added by extensions belong to the one before.

    An added stage is recognized by its name and settings, and because the job file has no stage of that name there.
    """
    groups: list[list[Stage]] = []
    for stage in stages:
        own = groups and stage["name"] == f"{groups[-1][0]['name']}-{len(groups[-1]) + 1}"
        named = requested[len(groups) : len(groups) + 1] == [stage["name"]]
        if own and not named and _follows(stage, groups[-1][-1]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _follows(stage: Stage, before: Stage) -> bool:
    """True if the stage has the settings of the previous one and no other start."""
    own = ("name", "epochs", "startFrom")
    return "startFrom" not in stage and _without(stage, own) == _without(before, own)


def _has_no_other_past(stage: Stage, epochs: float) -> bool:
    """True if the epochs so far would have been the same in a longer stage."""
    rate = stage["learningRate"]
    if stage["algorithm"] == "PCA" and stage.get("pca", {}).get("solver", "BFGS") == "BFGS":
        return True  # it searches the length of each step
    if rate["schedule"] in INDEPENDENT_OF_EPOCHS or "scheduleEpochs" in rate:
        return True
    same_until = stage["epochs"] - rate["decayEpochs"] if rate["schedule"] == "WSD" else rate["warmupEpochs"]
    return epochs <= float(same_until)


def _check(group: _Group, lacking: int, made: Made) -> None:
    """Refuse changes that no run can have."""
    (stage, _), has = group.parts[-1], group.epochs
    started = [name for name in group.later if name in made.epochs or name in made.complete]
    if stage in made.complete and stage not in made.epochs:
        raise UserError(f"{group.field}: stage {stage} left no checkpoint to go on from; {_OTHERWISE}")
    if lacking < 0 and (stage in made.epochs or len(group.parts) > 1):
        raise UserError(f"{group.field} is less than the {has} of the run in this folder; ask for more, {_OTHERWISE}")
    if stage in made.epochs and started:
        reason = f"stage {started[0]} has begun from the weights that stage {stage} had after {has}"
        raise UserError(f"{group.field}: {reason}; give stage {started[-1]} more epochs, {_OTHERWISE}")


def _check_whole(job: Manifest) -> None:
    """Refuse a continuation that is not possible."""
    problems = schema.check(job)
    if problems:
        remedy = "ask for another number of epochs, or write the stage that is to follow at the end of the job file"
        raise UserError(f"no such stage can follow in this folder: {problems[0]}; {remedy}")


def _stages(stages: Sequence[Stage], parts: Sequence[_Parts]) -> Iterator[Stage]:
    for stage, own in zip(stages, parts, strict=False):
        for number, (name, epochs) in enumerate(own):
            yield {**(_without(stage, ("startFrom",)) if number else stage), "name": name, "epochs": epochs}


def _claim(job: Manifest) -> str:
    return str(job["spec"]["checkpoint"].get("claimName", ""))


def _with_stages(job: Manifest, stages: Sequence[Stage], claim: str) -> Manifest:
    """A claim, which several stages require. Any name will do: their checkpoints are in the run folder."""
    spec = {**job["spec"], "stages": list(stages)}
    if len(stages) > 1:
        spec["checkpoint"] = {**spec["checkpoint"], "claimName": claim}
    return {**job, "spec": spec}


def _without(stage: Stage, fields: Collection[str]) -> Stage:
    return {name: value for name, value in stage.items() if name not in fields}
