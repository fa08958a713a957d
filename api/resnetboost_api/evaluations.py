"""What a job does with its evaluations: keep the best checkpoints, and end a stage before its last epoch."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.fields import Block, Rule

# Figures of an evaluation over the test set. Of top1 and top5 more is better, of loss less.
Metric = Literal["top1", "top5", "loss"]


class Best(Block, frozen=True, kw_only=True):
    """Keep the weights of each stage's best evaluations too, beside the newest checkpoints, which never displace them.
    They are for `--which best` and `startFrom.which: Best`; a training that is started again goes on from the newest.
    In a stage with ema the averaged weights are judged. Left out, none are kept.
    """

    metric: Metric = "top1"
    """Figure of the evaluations on the test images that says which is better: top1 and top5, the more the better, or
    loss, the less the better. Of equal ones the earliest is the best.
    """
    keep: Annotated[int, Meta(ge=1, le=100)] = 1
    """How many of the best are kept for each stage."""


class StopWhen(Block, frozen=True, kw_only=True):
    """End the stage after an evaluation, before its last epoch: when all targets are met (top1, top5, loss), or when
    metric has not improved in patience evaluations. It is complete then, and the next stage begins. In a stage with
    ema the averaged weights are judged. Left out, all epochs are trained.
    """

    top1: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Target: a top-1 accuracy of at least this share of the test images, 0 to 1."""
    top5: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Target: a top-5 accuracy of at least this share of the test images, 0 to 1."""
    loss: Annotated[float, Meta(gt=0, le=1000000)] | None = None
    """Target: a mean loss on the test images of at most this."""
    patience: Annotated[int, Meta(ge=1, le=100000)] | None = None
    """Evaluations in a row without an improvement after which the stage ends. Left out, only the targets end it."""
    metric: Metric = "top1"
    """Figure that patience is about."""
    min_delta: Annotated[float, Meta(ge=0, le=1000000)] = 0
    """How much better than the best one before an evaluation must be to count as an improvement; any bit, if 0."""
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.top1) || has(self.top5) || has(self.loss) || has(self.patience)",
            "stopWhen says nothing that could end the stage; add a target such as top1: 0.99, or patience",
            reason="FieldValueRequired",
        ),
        Rule(
            "has(self.patience) || (self.metric == 'top1' && self.minDelta == 0.0)",
            "metric and minDelta say what patience waits for; add patience, or leave them out",
            field_path=".patience",
            reason="FieldValueRequired",
        ),
    )
