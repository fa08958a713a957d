"""The status of a ResNetBoostJob, written by the operator alone."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.evaluations import Metric
from resnetboost_api.fields import ATOMIC, Reported, Time, keyed

Phase = Literal[
    "Pending", "Queued", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Complete", "Failed"
]
StageState = Literal["Pending", "Running", "Complete", "Failed"]
ConditionStatus = Literal["True", "False", "Unknown"]

# A rank's claims about itself are read with these bounds, and a number beyond the API server's would hold up the whole
# status. The CRD has no upper ones. A diverging loss may be any number of float32 (3.4e38).
_UNBOUNDED = {"maximum": None}
Count = Annotated[int, Meta(ge=0, le=2**53, extra_json_schema=_UNBOUNDED)]
Amount = Annotated[float, Meta(ge=0, le=1e39, extra_json_schema=_UNBOUNDED)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Word = Annotated[str, Meta(max_length=64, pattern="^[A-Z][A-Za-z0-9]*$")]
NameOfStage = Annotated[str, Meta(max_length=20)]
Indexes = Annotated[str, Meta(max_length=8192, pattern="^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$")]


class Condition(Reported, frozen=True, omit_defaults=False):
    """One aspect of the state."""

    type: Annotated[str, Meta(min_length=1, max_length=316, pattern="^[A-Z][A-Za-z]*$")]
    """Name of the aspect, such as Running or Complete."""
    status: ConditionStatus
    """Whether it holds."""
    reason: Annotated[str, Meta(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, as one word for programs."""
    message: Annotated[str, Meta(max_length=32768)]
    """Why, as a sentence for people."""
    last_transition_time: Time
    """When the status last changed."""
    observed_generation: Count = 0
    """Generation of the job this was decided for."""


class Ranks(Reported, frozen=True, omit_defaults=False):
    """The ranks of the current attempt, counted."""

    desired: Count = 0
    """Ranks there should be."""
    running: Count = 0
    """Ranks whose container runs."""
    ready: Count = 0
    """Ranks whose pod is ready."""
    failed: Count = 0
    """Ranks that ended with an error."""
    succeeded: Indexes = ""
    """Ranks that are done with the stage, as ranges such as "0-6" or "0,2-3"."""


class BestCheckpoint(Reported, frozen=True, kw_only=True):
    """The best checkpoint that a stage has kept, by checkpoint.best."""

    step: Count
    """Step of its weights."""
    metric: Metric
    """Figure of the evaluations that says which is the best."""
    value: Amount
    """That figure: top1 and top5 from 0 to 1."""


class EarlyStop(Reported, frozen=True, kw_only=True):
    """Why a stage ended before its last epoch, by its stopWhen."""

    step: Count
    """Step that it ended after."""
    reason: Word
    """TargetReached, or NoImprovement for patience evaluations."""
    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why, as a sentence for people."""


class StageStatus(Reported, frozen=True):
    """How one stage went."""

    name: NameOfStage
    """Name of the stage."""
    state: StageState = "Pending"
    """How far it is."""
    attempts: Count = 0
    """How many attempts it took so far."""
    checkpoint_step: Count | None = None
    """Step of the newest whole checkpoint that its ended attempts are known to have left; also those that the list of
    attempts no longer has.
    """
    top1: Ratio | None = None
    """Share of the test images whose most likely class was right, 0 to 1."""
    top5: Ratio | None = None
    """Share of the test images whose class was among the five most likely, 0 to 1."""
    test_loss: Amount | None = None
    """Mean loss on the test images."""
    skipped_images: Count = 0
    """Images that could not be used and were skipped; the ranks' logs name each."""
    best: BestCheckpoint | None = None
    """Its best checkpoint; left out without checkpoint.best."""
    stopped_early: EarlyStop | None = None
    """Why it ended before its last epoch; left out if it did not."""


class Straggler(Reported, frozen=True):
    """A slow rank, as rank 0 reported it."""

    rank: Count
    """The rank."""
    index: Count
    """Index of its pod, which differs from the rank where a rank table places it elsewhere."""
    seconds: Amount
    """Median of its compute times of a step, in seconds."""
    median: Amount
    """Median of the ranks' medians, in seconds."""
    since_step: Count = 0
    """Step at which it was found to be slow."""
    since: Time | None = None
    """When the operator first heard of it."""
    node: Annotated[str, Meta(max_length=253)] = ""
    """The node it runs on."""
    device: Count | None = None
    """Number of its device on that node, where the device plugin says it."""


class Progress(Reported, frozen=True):
    """How far the running stage is, as rank 0 reported a moment ago."""

    state: Annotated[str, Meta(max_length=63, pattern="^([A-Z][A-Za-z0-9]*)?$")] = ""
    """What the ranks are doing: Starting, Preflight, Compiling, Training, Evaluating or Finished."""
    stage: NameOfStage = ""
    """Stage this is about."""
    attempt: Count = 0
    """Attempt this is about."""
    step: Count = 0
    """Optimizer steps done in the stage."""
    total_steps: Count = 0
    """Optimizer steps of the whole stage."""
    epoch: Amount = 0.0
    """Epochs done, with two decimals."""
    total_epochs: Count = 0
    """Epochs of the whole stage."""
    percent: Percent = 0
    """Share of the stage that is done, 0 to 100."""
    loss: Amount | None = None
    """Mean training loss over the recent steps."""
    accuracy: Ratio | None = None
    """Mean training accuracy over the recent steps, 0 to 1."""
    learning_rate: Amount | None = None
    """Learning rate of the last step."""
    step_seconds: Amount | None = None
    """Mean duration of the recent steps, in seconds."""
    images_per_second: Amount | None = None
    """Images trained on per second, all ranks together."""
    eta_seconds: Count | None = None
    """Estimated seconds to the end of the stage."""
    checkpoint_step: Count | None = None
    """Step of the newest whole checkpoint; left out where checkpoints go with their pods, without
    checkpoint.claimName and checkpoint.url.
    """
    resumed_step: Count | None = None
    """Step that the attempt went on from, 0 if it began the stage."""
    top1: Ratio | None = None
    """Top-1 accuracy of the last evaluation on the test images, 0 to 1."""
    top5: Ratio | None = None
    """Top-5 accuracy of the last evaluation on the test images, 0 to 1."""
    test_loss: Amount | None = None
    """Mean loss of the last evaluation on the test images."""
    best: BestCheckpoint | None = None
    """The best checkpoint so far."""
    slowest_rank: Count | None = None
    """Rank that computed longest before the last reduction."""
    slowest_compute_seconds: Amount | None = None
    """How long that rank computed in a step, in seconds."""
    preflight_seconds: Amount | None = None
    """How long the attempt's preflight took, in seconds; left out if it had none."""
    stragglers: Annotated[tuple[Straggler, ...], Meta(max_length=8, extra_json_schema=ATOMIC)] = ()
    """Ranks that compute much longer than the others, the slowest first; at most 8."""
    skipped_images: Count = 0
    """Images that rank 0 skipped in this attempt because they cannot be used."""
    heartbeat: Count = 0
    """Counts training steps and evaluation batches; a gang whose count stands still hangs."""
    heartbeat_time: Time | None = None
    """When the operator last saw the heartbeat move."""


class Suspect(Reported, frozen=True, kw_only=True, omit_defaults=False):
    """A rank that the preflight names."""

    index: Count
    """Index of its pod."""
    rank: Count
    """Its rank, which a rank table may make another number."""
    node: Annotated[str, Meta(max_length=253)] = ""
    """The node it ran on."""
    reason: Word
    """SlowCompute, SlowCollective, SlowNode (its node's all-reduce), WrongResult (other bits than most ranks),
    UnsteadyResult (other bits the second time) or DisagreeingResult (ranks differ, and nobody knows which is right).
    """
    percent: Count | None = None
    """Its rate in percent of the gang's median, where it is slow."""
    REQUIRED: ClassVar[tuple[str, ...] | None] = ("index", "reason")


class PreflightResult(Reported, frozen=True, kw_only=True):
    """What the newest preflight found. Rates are of this gang's devices and compare within it only."""

    stage: NameOfStage = ""
    """Stage it was for."""
    attempt: Count = 0
    """Attempt it was for."""
    time: Time | None = None
    """When the operator heard of it."""
    seconds: Amount = 0.0
    """How long it took."""
    compute_median: Amount | None = None
    """Median of the ranks' rates of computing, in GFLOP/s."""
    compute_lowest: Amount | None = None
    """The lowest of these rates, in GFLOP/s."""
    slowest_rank: Count | None = None
    """Index of the rank with the lowest rate of computing."""
    collective_rate: Amount | None = None
    """Rate of an all-reduce of 64 MiB over the whole gang, in MB/s of what each rank gives."""
    link_median: Amount | None = None
    """Median of the ranks' rates of an all-reduce with a neighbour, in MB/s."""
    link_lowest: Amount | None = None
    """The lowest of these rates, in MB/s."""
    suspects: Annotated[tuple[Suspect, ...], Meta(max_length=8, extra_json_schema=ATOMIC)] = ()
    """Ranks that are too slow or compute wrongly; wrong ones first, then the slowest, eight at most."""
    suspect_count: Count = 0
    """How many ranks were named, also beyond those."""


class PolledProgress(Progress, frozen=True):
    """What a rank answers: its progress, and what only the status keeps."""

    preflight: PreflightResult | None = None
    """What the attempt's preflight found."""


class Loss(Reported, frozen=True, omit_defaults=False):
    """Time lost to one cause because of one failure class."""

    reason: Word
    """What the time went into. Detection: until a failure was noticed. Restart: from then until the next attempt had
    finished a step. Replay: steps that had to be done again. Preflight: checks before training. Queueing: waiting for
    admission or room. Overhead: the rest, such as the first start, evaluations and checkpoints. A failure class:
    everything an older operator counted for it.
    """
    device_seconds: Count
    """Pods times seconds."""
    failure: Annotated[
        str, Meta(max_length=64, pattern="^([A-Z][A-Za-z0-9]*)?$", extra_json_schema={"default": ""})
    ] = ""
    """Class of the failure that caused it, empty if none did."""
    REQUIRED: ClassVar[tuple[str, ...] | None] = ("reason",)


class Goodput(Reported, frozen=True):
    """What became of the time of all ended attempts and between them. An estimate from the mean duration of a step."""

    attempt_seconds: Count = 0
    """Seconds from creation to end, all ended attempts together."""
    productive_seconds: Count = 0
    """Seconds among them that went into steps that count."""
    productive_device_seconds: Count = 0
    """The same as pods times seconds. With everything in lost it is the pods' whole time, in attempts and between
    them, except while the job was suspended.
    """
    percent: Percent = 0
    """Productive device-seconds in percent of all device-seconds but those of Queueing."""
    repeated_steps: Count = 0
    """Steps that were done after the last checkpoint of an attempt that failed, and so done twice."""
    lost: Annotated[tuple[Loss, ...], Meta(max_length=256, extra_json_schema=keyed("reason", "failure"))] = ()
    """Device-seconds that ended in nothing, by what they were lost to and the failure that caused it."""


class Attempt(Reported, frozen=True):
    """One attempt and what ended it."""

    attempt: Count
    """Number of the attempt."""
    stage: NameOfStage
    """Stage it ran."""
    reason: Word
    """Class of its end, such as Succeeded, OutOfMemory or Interrupted."""
    end_time: Time
    """When it was found to have ended."""
    start_time: Time | None = None
    """When its pods were created, or its ranks ran again in the pods they had."""
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Exit code of the rank that failed first."""
    rank: Count | None = None
    """The rank that failed first."""
    node: Annotated[str, Meta(max_length=253)] | None = None
    """The node that rank ran on."""
    last_step: Count | None = None
    """The last step the attempt was known to have done."""
    checkpoint_step: Count | None = None
    """Step of the newest whole checkpoint at its end; corrected as soon as the next attempt reports the step that it
    resumes from.
    """
    resumed_step: Count | None = None
    """Step that the attempt went on from, 0 if it began the stage."""
    step_seconds: Amount | None = None
    """Mean duration of its recent steps, in seconds."""
    rule: Annotated[str, Meta(max_length=63, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$")] | None = None
    """The rule of failurePolicy.rules that decided what followed; left out where none matched."""
    message: Annotated[str, Meta(max_length=4096)] = ""
    """What the rank said, or the end of its log."""
    ranks: Count | None = None
    """How many ranks it had."""
    rolled_back: bool = False
    """Whether the next attempt went back to a checkpoint before the failure; see rollBacks."""
    REQUIRED: ClassVar[tuple[str, ...] | None] = ("attempt",)


class ExcludedNode(Reported, frozen=True):
    """A node that the next attempts avoid, because it failed."""

    node: Annotated[str, Meta(min_length=1, max_length=253)]
    """Name of the node."""
    points: Annotated[float, Meta(ge=0, le=1000000)]
    """Failures it was blamed for when it was excluded, earlier ones counting less."""
    since: Time
    """When it was excluded, or failed again."""
    until: Time
    """When half of the points that exclude a node are left, and the node is used again."""
    reason: Annotated[str, Meta(max_length=1024)] = ""
    """Why, as a sentence for people."""


class RollBack(Reported, frozen=True):
    """One time that the training went back because it had diverged. The trainers of all later attempts get it too."""

    attempt: Count
    """Number of the attempt that diverged."""
    stage: NameOfStage
    """Stage it ran."""
    from_step: Count
    """The step that was found to have diverged, counted from 1; it never counted as done."""
    learning_rate_factor: Annotated[float, Meta(ge=0, le=1)]
    """What the learning rate is multiplied by from then on, beside the factors of earlier roll-backs of the stage."""
    at_most_step: Count
    """The newest checkpoint of that attempt or earlier ones that may still be used: forSteps before the fault."""
    skip_to_batch: Count | None = None
    """Batches of the stage's data order that count as used, up to that of the fault; left out without skipBatches."""
    to_step: Count | None = None
    """Step the training went back to, once the next attempt has reported it; 0 if it began the stage anew."""


class Status(Reported, frozen=True):
    """What became of the job. Written by the operator alone."""

    phase: Phase = "Pending"
    """Summary for people. Pending: nothing runs yet. Queued: it waits for its queue's admission. Starting: pods exist,
    not all ranks train. Running: all ranks train. Restarting: the gang failed, or gets another number of devices, and
    starts again. Suspending: the ranks save and leave. Suspended: stopped by runPolicy.suspend. Complete and Failed are
    final. Programs should look at conditions.
    """
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=32, extra_json_schema=keyed("type"))] = ()
    """State of the job for programs, as Kubernetes conditions."""
    stage: NameOfStage = ""
    """Name of the stage that runs now, or ran last."""
    attempt: Count = 0
    """Number of the current attempt. Numbers start at 0 and grow over the whole job."""
    pods_attempt: Count | None = None
    """The attempt whose pods the current attempt uses, if its ranks restarted in place; left out if it has its own."""
    attempt_creation_time: Time | None = None
    """When the first pod of the current attempt was decided on, or when its ranks were to start in the pods they have;
    startupDeadlineSeconds count from here.
    """
    attempt_start_time: Time | None = None
    """When every pod of the current attempt was first seen, in place: when every rank ran; from then on a missing one
    is lost.
    """
    failure_time: Time | None = None
    """When a rank of the current attempt was first seen to blame another; whoever it was is awaited for a while."""
    fault_time: Time | None = None
    """When the first rank ended of those seen at failureTime; time is lost to detection from then on."""
    attempt_training_time: Time | None = None
    """When the current attempt began to train; what it took until then is its start."""
    attempt_waiting_time: Time | None = None
    """Since when there is no room for all pods of the current attempt; left out while there is."""
    attempt_waited_seconds: Count = 0
    """How long the current attempt waited for room before, in seconds."""
    waiting_time: Time | None = None
    """Since when the job waits for its next attempt, in its queue or between two attempts; goodput has the time before.
    """
    virtual_ranks: Count | None = None
    """device.count of the first attempt, by which the training is defined; later ones may have fewer ranks."""
    device_count: Count | None = None
    """Number of devices of the current attempt, once it has begun."""
    placeable_devices: Count | None = None
    """For how many devices there was room of late, where it was not for all; the next attempt asks for no more."""
    resize_time: Time | None = None
    """When the number of devices last changed."""
    selector: Annotated[str, Meta(max_length=256)] = ""
    """Selects the job's pods, for `kubectl scale` and autoscalers."""
    ranks: Ranks = Ranks()
    observed_generation: Count = 0
    """Generation of the job that this status was decided for."""
    start_time: Time | None = None
    """When the job was first seen, or last resumed; its active time counts from here."""
    completion_time: Time | None = None
    """When the job became Complete or Failed."""
    rank_table: Annotated[str, Meta(max_length=64, pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the current attempt's rank table, once there is one; the annotations of its config map and of every
    pod that may read it have the same value.
    """
    restarts: Count = 0
    """How often the gang was started again, for whatever reason."""
    restarts_count_towards_max: Count = 0
    """The restarts among them that count towards failurePolicy.maxRestarts."""
    restart_time: Time | None = None
    """The next attempt starts no earlier than this."""
    stages: Annotated[tuple[StageStatus, ...], Meta(max_length=16, extra_json_schema=keyed("name"))] = ()
    """How each stage went, in the order of the spec."""
    progress: Progress | None = None
    preflight: PreflightResult | None = None
    goodput: Goodput | None = None
    attempts: Annotated[tuple[Attempt, ...], Meta(max_length=20, extra_json_schema=keyed("attempt"))] = ()
    """The newest 20 attempts that ended, with what ended them."""
    excluded_nodes: Annotated[tuple[ExcludedNode, ...], Meta(max_length=32, extra_json_schema=keyed("node"))] = ()
    """Nodes that the next attempts avoid, by failurePolicy.nodeExclusion or a rule's action ExcludeNode."""
    roll_backs: Annotated[tuple[RollBack, ...], Meta(max_length=10, extra_json_schema=keyed("attempt"))] = ()
    """What the training went back for, by failurePolicy.divergence; never more than its maxRollBacks."""
