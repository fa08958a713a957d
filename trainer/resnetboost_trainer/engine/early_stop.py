"""Ends a stage before its last epoch, by `stopWhen`: all ranks after the same evaluation.

The leader decides from the evaluations so far, which its checkpoints have: whenever a run resumes, the same decision
follows from them again.
"""

from resnetboost_api.evaluations import StopWhen
from resnetboost_api.status import EarlyStop
from resnetboost_trainer.checkpoint.evaluations import Evaluated, History, counted, early_stop
from resnetboost_trainer.distributed.communicator import Communicator


class StopRule:
    """A stage's `stopWhen`, or None. `history` and `found`, why the stage ends, are the leader's alone."""

    def __init__(self, rule: StopWhen | None, communicator: Communicator) -> None:
        self.rule, self.communicator = rule, communicator
        self.history: History | None = None
        self.found: EarlyStop | None = None
        self.ends = False

    def restore(self, history: History | None) -> None:
        """Continue from a checkpoint's history; only the leader has it. A collective."""
        self.history = history
        self._decide()

    def count(self, evaluated: Evaluated) -> None:
        """Take an evaluation into account. A collective."""
        if self.rule is not None and self.communicator.leads:
            self.history = counted(self.history, evaluated, self.rule)
        self._decide()

    def _decide(self) -> None:
        if self.rule is None:
            return
        self.found = early_stop(self.history, self.rule)
        (ends,) = self.communicator.broadcast_integers([int(self.found is not None)])
        self.ends = bool(ends)
