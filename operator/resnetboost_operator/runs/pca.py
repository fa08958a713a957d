"""PCA's steps in the subspace of snapshots and their costs by stage, from a run's metrics."""

from resnetboost_operator.runs import cost
from resnetboost_operator.runs.cost import Cost
from resnetboost_operator.runs.metricsfile import Measured

# A step of full length, rounded to a few decimals.
WHOLE = 1 - 1e-6


class Descent(Cost, frozen=True, kw_only=True):
    """The steps of one stage in the subspace; `searched` of them had a line search, none of the solver SGD.

    `explained_variance` is the share of the snapshots' variance that the subspace holds. Among the searched
    steps, `full` kept the length 1, `shortened` had less and `rejected` 0, after `evaluations` of the loss on average.
    `gradient_share` is the share of the gradient's squared length in the subspace: the mean of all steps, and of the
    first and the last tenth of them. nan if no step has it.
    """

    steps: int
    explained_variance: float
    full: int
    shortened: int
    rejected: int
    evaluations: float
    gradient_share: float
    first_gradient_share: float
    last_gradient_share: float

    @property
    def searched(self) -> int:
        """Number of steps with a line search."""
        return self.full + self.shortened + self.rejected


def by_stage(measured: Measured) -> list[Descent]:
    """The stages that trained in a subspace, in order."""
    variances = measured.column("pca_explained_variance")
    stages = dict.fromkeys(name for name, value in zip(measured.stages, variances, strict=True) if value == value)
    return [_of(measured, stage) for stage in stages]


def _of(measured: Measured, stage: str) -> Descent:
    whole = cost.places_of(measured, stage)
    evaluations = cost.picked(measured, "pca_evaluations", whole)
    searched = [place for place, count in zip(whole, evaluations, strict=True) if count > 0]
    lengths = cost.picked(measured, "pca_step_length", searched)
    shares = cost.picked(measured, "pca_gradient_share", whole)
    tenth = max(1, len(shares) // 10)
    return Descent(
        stage=stage,
        steps=len(whole),
        explained_variance=cost.median(cost.picked(measured, "pca_explained_variance", whole)),
        full=sum(length >= WHOLE for length in lengths),
        shortened=sum(0 < length < WHOLE for length in lengths),
        rejected=sum(length == 0 for length in lengths),
        evaluations=cost.mean(cost.picked(measured, "pca_evaluations", searched)),
        gradient_share=cost.mean(shares),
        first_gradient_share=cost.mean(shares[:tenth]),
        last_gradient_share=cost.mean(shares[-tenth:]),
        seconds=cost.settled_seconds(measured, "pca_seconds", whole),
        stage_seconds=cost.stage_seconds(measured, whole),
    )
