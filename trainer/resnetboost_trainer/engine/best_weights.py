"""Decides which evaluated weights of a stage are kept as the best ones, on the rank that writes checkpoints."""

from pathlib import Path

from resnetboost_api.evaluations import Best
from resnetboost_api.status import BestCheckpoint
from resnetboost_trainer.checkpoint import best
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.evaluations import BestMark, Evaluated
from resnetboost_trainer.checkpoint.saver import Keeping
from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.logger import MetricLogger


class BestWeights:
    """The best checkpoints of a stage; what lies on disk decides, without those of abandoned branches."""

    def __init__(self, rule: Best, config: Config, root: Path, logger: MetricLogger) -> None:
        self.rule, self.config, self.root, self.logger = rule, config, root, logger
        self._usable = Branch(config.roll_backs).of(config.stage).usable
        self.keeping = Keeping(rule.keep, self.report, usable=self._usable)

    def mark(self, found: Evaluated) -> BestMark | None:
        """Return the mark of weights that are among the best, by their evaluation; None for others."""
        mark = BestMark(metric=self.rule.metric, evaluation=found)
        return mark if best.is_wanted(self.rule, mark, self._kept()) else None

    def report(self, *_: object) -> None:
        """Report the best checkpoint on disk. Also called from the writer's thread, after each write."""
        for kept in self._kept()[:1]:
            evaluation, metric = kept.mark.evaluation, kept.mark.metric
            self.logger.best(BestCheckpoint(step=evaluation.step, metric=metric, value=kept.value))

    def _kept(self) -> list[best.Kept]:
        config = self.config
        return best.find(self.root, config.job.uid, config.stage, config.attempt + 1, self._usable)
