"""Which checkpoints a stage may use after roll-backs, and which batches come after them.

A roll-back abandons what its attempt and earlier ones saved after a step: those checkpoints are of the branch that
diverged. Everything here depends on the config and on a checkpoint's manifest alone, so that a restart, a suspension
and another roll-back find the same branch again.
"""

from collections.abc import Sequence

import msgspec

from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.config import RollBack


class Branch(msgspec.Struct, frozen=True):
    """The roll-backs of a job, the earliest first."""

    roll_backs: tuple[RollBack, ...] = ()

    def of(self, stage: str) -> "Branch":
        """Only those of that stage."""
        return Branch(tuple(found for found in self.roll_backs if found.stage == stage))

    def usable(self, step: int, attempt: int) -> bool:
        """False if a roll-back has abandoned that attempt's checkpoint of that step. For one stage's roll-backs."""
        return all(attempt > found.attempt or step <= found.at_most_step for found in self.roll_backs)

    @property
    def at_most_step(self) -> float:
        """The furthest step of another job's checkpoints that may be used. For one stage's roll-backs."""
        return min((found.at_most_step for found in self.roll_backs), default=float("inf"))

    def ahead(self, attempt: int) -> Sequence[RollBack]:
        """Those that a checkpoint of that attempt knows nothing of."""
        return [found for found in self.roll_backs if found.attempt >= attempt]

    def skipped_batches(self, manifest: Manifest | None, ours: str) -> int:
        """How far the data order is ahead of the steps for a run that resumes from there; None begins the stage.

        A later roll-back's fault lies behind those of earlier ones, so that the furthest decides. `ours` is this job's
        uid: another job's attempts have numbers of their own.
        """
        if manifest is None:
            step, carried, attempt = 0, 0, -1
        else:
            step, carried = manifest.step, manifest.skipped_batches
            attempt = manifest.attempt if manifest.job_uid == ours else -1
        faults = [found.skip_to_batch for found in self.ahead(attempt) if found.skip_to_batch is not None]
        return max([carried, *(fault - step for fault in faults)])
