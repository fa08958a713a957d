"""Checkpoints, run policy and failure policy of a job."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api import failurerules, failures
from resnetboost_api.evaluations import Best
from resnetboost_api.fields import ATOMIC, Block, ObjectName, Rule, rules
from resnetboost_api.storage import StorageAddress

Resume = Literal["Never", "IfPresent", "Required"]
DivergenceAction = Literal["RollBack", "Fail"]
CleanPodPolicy = Literal["Running", "All", "None"]
RestartIn = Literal["Pod", "NewPod"]


class Checkpointing(Block, frozen=True, kw_only=True):
    """When the state of the training is saved, and what a new job does with it: what its trainer gets too."""

    every_steps: Annotated[int, Meta(ge=1, le=1000000000)] = 500
    """Steps between two checkpoints. One more is written at the end of a stage and when the job is stopped."""
    keep: Annotated[int, Meta(ge=1, le=100)] = 3
    """How many of the newest checkpoints of a stage are kept; older ones are deleted."""
    best: Best | None = None
    resume: Resume = "Never"
    """What a new job does with checkpoints that an earlier job of the same name and namespace left on the claim. Never:
    leave them alone and begin anew. IfPresent: go on from them if there are any. Required: fail if there are none.
    Restarts of one and the same job always go on.
    """
    keep_compiled_graphs: bool = True
    """Whether what MindSpore compiles is kept beside the checkpoints, so that a restart need not compile again. It is
    code: false where others than this job's pods write to the claim as the trainer's user.
    """
    url: StorageAddress | None = None
    """Address in object storage that checkpoints are copied to beside the training (s3://bucket/path), in a folder of
    the job's uid. Restarts, resumed jobs and other jobs find them there, so that no claim is needed. Only rank 0 makes
    requests, with the credentials of storage.
    """


class Checkpoint(Checkpointing, frozen=True, kw_only=True):
    """When and where the state of the training is saved. A gang that is started again goes on from the newest whole
    checkpoint.
    """

    claim_name: ObjectName | None = None
    """PersistentVolumeClaim for the checkpoints, mounted by rank 0 alone, which shares them with the others:
    ReadWriteOnce will do. Without it and without url they lie in the pod and are lost with it, so that a restart or a
    suspension begins the training again. `resnetboost run` keeps them in the run folder instead.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self == oldSelf",
            "checkpoint cannot change once the job exists; delete the job and apply it again",
        ),
    )

    @property
    def outlives_pods(self) -> bool:
        """Whether checkpoints are still there when the pods are gone."""
        return self.claim_name is not None or self.url is not None


class RunPolicy(Block, frozen=True, kw_only=True):
    """Whether and how long the job runs. All of it may change at any time."""

    suspend: bool = False
    """true: stop the ranks after a checkpoint and keep the job. false: run, or go on from that checkpoint."""
    startup_deadline_seconds: Annotated[int, Meta(ge=1, le=31536000)] = 1800
    """Seconds from the creation of an attempt's first pod to its first step, or the gang is started again: it covers
    quota, scheduling, images and compiling.
    """
    clean_pod_policy: CleanPodPolicy = "Running"
    """Which pods are deleted when the job ends. Running: those that have not ended; the others keep their logs. All:
    every pod. None: no pod, also one that hangs and keeps its device.
    """
    ttl_seconds_after_finished: Annotated[int, Meta(ge=0, le=315360000)] | None = None
    """Seconds after its end that the job is deleted, with everything it owns; checkpoints on a claim stay. Never when
    left out.
    """
    active_deadline_seconds: Annotated[int, Meta(ge=1, le=315360000)] | None = None
    """Seconds the job may be active since it was created or last resumed, as for a Kubernetes Job; then it saves and
    fails. No limit when left out.
    """


RuleName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$",
        title="a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
]


class FailureRule(Block, frozen=True, kw_only=True):
    """What to do about some failures: those of one of the classes and, if exit codes are given, with one of them."""

    name: RuleName | None = None
    """Name of the rule in status.attempts and events. Left out, it is rule-1 for the first rule, rule-2 for the
    second, and so on.
    """
    on_classes: Annotated[
        tuple[Annotated[failures.RuledClass, Meta(description="Name of a class.")], ...],
        Meta(max_length=20, extra_json_schema=ATOMIC),
    ] = ()
    """Classes of failures, such as OutOfMemory; any when left out. A pod that was deleted or evicted is a disruption
    (Disrupted) and no rule's matter, unless it ended with 10, 11, 12 or 17.
    """
    on_exit_codes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=255, description="An exit code.")], ...],
        Meta(max_length=16, extra_json_schema=ATOMIC),
    ] = ()
    """Exit codes of the rank that failed first; any when left out, also none."""
    action: failures.Action
    """Restart: start the gang again and count it towards maxRestarts; an error that would only repeat (InternalError,
    OutOfMemory, StorageError, DataError or NumericsError at the same step twice) fails the job. RestartUncounted: start
    it again however often, never without a wait. RollBack: go back to a checkpoint before the failure, as divergence
    says (its defaults, if it is left out). Fail: end the job at once. ExcludeNode: as Restart, and the next attempts
    avoid the node of the rank that failed first, after this one failure.
    """
    RULES: ClassVar[tuple[Rule, ...]] = failurerules.ON_ONE


FailureRules = Annotated[
    tuple[FailureRule, ...],
    Meta(
        max_length=failurerules.MOST_RULES,
        description=failurerules.DESCRIPTION,
        extra_json_schema={**ATOMIC, **rules(*failurerules.ON_ALL)},
    ),
]


class NodeExclusion(Block, frozen=True, kw_only=True):
    """Avoid nodes that fail again and again. Each failure gives the node of the rank that failed first one point; a
    disruption, or a rank that only lost its connection to another, gives none. Points halve every halfLifeSeconds.
    """

    after_failures: Annotated[int, Meta(ge=1, le=20)] = 2
    """Points at which the next attempts avoid the node, rounded: two failures within halfLifeSeconds are 2. It is used
    again when half of that is left, or when pods cannot be scheduled without it.
    """
    half_life_seconds: Annotated[int, Meta(ge=60, le=31536000)] = 3600
    """Seconds in which a node loses half of its points."""


class LossLimit(Block, frozen=True, kw_only=True):
    """When a loss counts as diverged: what the trainer gets too."""

    loss_above: Annotated[float, Meta(ge=0, le=1000000)] = 3.0
    """Limit of a step's loss, as a multiple of the running median of the losses before it, above 1. The median is that
    of the latest 100 losses that were not above the limit themselves, and at most the loss of an untrained network,
    which is ln(numClasses) for the cross entropy.
    """
    for_steps: Annotated[int, Meta(ge=1, le=1000000)] = 50
    """How many steps in a row the loss must be above that limit. A roll-back goes back at least as many steps."""


class Divergence(LossLimit, frozen=True, kw_only=True):
    """What happens when a loss or a gradient is not finite, or the loss stays above its limit. Steps that overflow at
    their loss scale are left out and are no divergence.
    """

    action: DivergenceAction = "RollBack"
    """RollBack: start the gang again from a checkpoint before the trouble, as the other fields say. Fail: end the
    job.
    """
    max_roll_backs: Annotated[int, Meta(ge=1, le=10)] = 2
    """How often the job may go back; the next divergence ends it. They do not count towards maxRestarts."""
    learning_rate_factor: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """What the learning rate is multiplied by for the rest of the stage, by each roll-back once more; above 0, at most
    1. Where a line search finds the length of a step, there is no rate to lower.
    """
    skip_batches: bool = True
    """Whether the batches from the checkpoint to the fault are left out: the stage goes on with those after the fault,
    and still makes all its steps. A batch that is itself corrupt is never met again.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.lossAbove > 1.0",
            """
            every second loss is above the median itself; use a lossAbove above 1, such as 3
            """,
            field_path=".lossAbove",
        ),
        Rule(
            "self.learningRateFactor > 0.0",
            "a stage learns nothing at the learning rate 0; use a learningRateFactor above 0, such as 0.5",
            field_path=".learningRateFactor",
        ),
        Rule(
            "self.skipBatches || self.learningRateFactor < 1.0 || self.action == 'Fail'",
            """
            a roll-back with the same batches and the same learning rate would diverge in the same way; use skipBatches:
            true or a learningRateFactor below 1
            """,
            field_path=".learningRateFactor",
        ),
    )


Factor = Annotated[float, Meta(gt=1, le=100)]


class StragglerPolicy(Block, frozen=True, kw_only=True):
    """What happens when a rank computes longer than the others, which wait for it in every step."""

    factor: Factor = 1.5
    """A rank is slow if the median of its compute times exceeds the gang's by this factor, and until it is below the
    middle between that and 1. A new value holds from the next attempt on.
    """
    for_seconds: Annotated[int, Meta(ge=1, le=31536000)] = 300
    """Seconds that a rank must be slow before the condition Straggling is True."""
    action: Literal["Report", "Replace"] = "Report"
    """Report: condition, event and metrics. Replace: then also start the gang again without that rank's node, at most
    once an hour and not counted towards maxRestarts; only where the gang is on several nodes and has a
    checkpoint.claimName or checkpoint.url.
    """


class FailurePolicy(Block, frozen=True, kw_only=True):
    """What happens when a rank fails. maxRestarts, rules, nodeExclusion and straggler may change at any time and
    hold from the next failure on; the rest cannot change once the job exists.
    """

    max_restarts: Annotated[int, Meta(ge=0, le=1000000)] = 5
    """How often the gang is started again after a failure of its own before the job fails. Restarts for evictions and
    lost nodes are not counted. 0 means never.
    """
    restart_in: RestartIn = "Pod"
    """Where the ranks start again. Pod: in the pods they have, within seconds, if all pods, nodes and devices are well
    and the operator reaches port 9401 of rank 0's pod; else in new ones. NewPod: always in new ones.
    """
    backoff_seconds: Annotated[int, Meta(ge=0, le=86400)] = 10
    """Seconds to wait before the first restart; doubled with every failure that follows soon."""
    max_backoff_seconds: Annotated[int, Meta(ge=0, le=86400)] = 600
    """The longest wait before a restart, in seconds; at least backoffSeconds."""
    stable_after_seconds: Annotated[int, Meta(ge=1, le=31536000)] = 600
    """Seconds an attempt must have run for the wait to start again from backoffSeconds. It never gives back
    restarts.
    """
    hang_timeout_seconds: Annotated[int, Meta(ge=10, le=31536000)] = 600
    """Seconds without a finished step after which a running gang counts as hung and is started again."""
    rules: FailureRules = ()
    node_exclusion: NodeExclusion | None = None
    divergence: Divergence | None = None
    """Left out, a loss or gradient that is not finite ends the job, and no other loss does."""
    straggler: StragglerPolicy = StragglerPolicy()
