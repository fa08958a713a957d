"""Pods of an attempt that are to be created, by their indexes: a thousand manifests would take 5 MiB."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import PLAIN, Placement
from resnetboost_operator.manifests.pod import pod

Manifest = dict[str, Any]


class PodsToCreate(msgspec.Struct, frozen=True):
    """The pods with these indexes; each is built just before its request."""

    job: Job
    stage: Stage
    attempt: int
    indexes: tuple[int, ...]
    placement: Placement = PLAIN

    def by_name(self) -> dict[str, Callable[[], Manifest]]:
        """What builds each pod, by the pod's name."""
        name = partial(names.pod, self.job.name, self.stage.name, self.attempt)
        return {name(index): partial(self.build, index) for index in self.indexes}

    def build(self, index: int) -> Manifest:
        """The manifest of a pod."""
        return pod(self.job, self.stage, self.attempt, index, self.placement)
