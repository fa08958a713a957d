"""Short phrases about a run's status, the most important first."""

from collections.abc import Sequence

from resnetboost_api import failures
from resnetboost_api.status import (
    Attempt,
    BestCheckpoint,
    EarlyStop,
    Progress,
    RollBack,
    StageStatus,
    Status,
    Straggler,
)
from resnetboost_operator import readable, sizes
from resnetboost_operator import status as statuses
from resnetboost_operator.job import Job
from resnetboost_operator.observed import pods
from resnetboost_operator.runs import cost
from resnetboost_operator.runs.adasum import Sums
from resnetboost_operator.runs.pca import Descent
from resnetboost_operator.runs.thor import Updates

SEPARATOR = " · "
_SHARES = {"top1": "top-1", "top5": "top-5"}


def headline(job: Job) -> str:
    """One line about the job: model, data set and ranks."""
    return f"{job.name}: " + SEPARATOR.join(facts(job))


def facts(job: Job) -> list[str]:
    """Lines about the job, shown before the run starts."""
    spec = job.spec
    ranks = readable.ranks(spec.device.type, [stage.device_count for stage in spec.stages])
    batches = {sizes.defined(job, stage) * stage.local_batch_size * stage.accumulation_steps for stage in spec.stages}
    batch = "/".join(str(size) for size in sorted(batches))
    return [f"{spec.model.name} on {spec.dataset.name}", ranks, f"global batch {batch}", f"seed {spec.seed}"]


def position(progress: Progress) -> list[str]:
    """Progress of a stage in epochs and steps."""
    if progress.total_steps == 0:
        return []  # the stage has not started to count
    epoch = min(int(progress.epoch) + 1, progress.total_epochs) if progress.step < progress.total_steps else None
    shown = progress.total_epochs if epoch is None else epoch
    return [f"epoch {shown}/{progress.total_epochs}", f"step {progress.step}/{progress.total_steps}"]


def figures(progress: Progress, *, running: bool = True) -> list[str]:
    """The last measurements of the training; unknown ones are left out."""
    found = (
        ("loss {}", progress.loss, readable.quantity),
        ("accuracy {}", progress.accuracy, readable.share),
        ("test {}", progress.top1, readable.share),
        ("{} images/s", progress.images_per_second, readable.quantity),
        ("ETA {}", progress.eta_seconds if running else None, readable.duration),
    )
    phrases = [text.format(written(value)) for text, value, written in found if value is not None]
    return phrases if progress.best is None else [*phrases, best(progress.best)]


def result(stage: StageStatus) -> list[str]:
    """The result of a finished stage."""
    found = (("top-1", stage.top1, readable.share), ("top-5", stage.top5, readable.share))
    phrases = [f"{name} {written(value)}" for name, value, written in found if value is not None]
    phrases += [f"test loss {readable.quantity(stage.test_loss)}"] if stage.test_loss is not None else []
    phrases += [best(stage.best)] if stage.best is not None else []
    return phrases if stage.stopped_early is None else [*phrases, stopped_early(stage.stopped_early)]


def best(found: BestCheckpoint) -> str:
    """The best checkpoint by its figure and step."""
    if found.metric == "loss":
        return f"best loss {readable.quantity(found.value)} at step {found.step}"
    return f"best {_SHARES[found.metric]} {readable.share(found.value)} at step {found.step}"


def stopped_early(found: EarlyStop) -> str:
    """Why a stage ended before its last epoch."""
    return f"stopped early: {' '.join(found.message.split()) or found.reason}"


def skipped(stage: StageStatus) -> list[str]:
    """How many images a stage skipped."""
    return [f"{readable.plural(stage.skipped_images, 'unusable image')} skipped"] if stage.skipped_images else []


def curvature(updates: Updates) -> list[str]:
    """Phrases about a stage's curvature updates and their cost."""
    failed = sum(updates.layers["failed"])
    return [
        f"{updates.stage}: {readable.plural(len(updates.steps), 'update')}",
        cost.describe([updates]),
        f"{sum(updates.layers['updated'])} of {updates.candidates} layers updated",
        *([f"{failed} failed"] if failed else []),
    ]


def sums(found: Sums) -> list[str]:
    """Phrases about a stage's adaptive sums and their cost."""
    return [
        f"{found.stage}: gain {readable.quantity(found.gain)} of {found.summands}",
        f"cosine {readable.quantity(found.cosine)}, least {readable.quantity(found.least_cosine)}",
        cost.describe([found]),
    ]


def subspace(found: Descent) -> list[str]:
    """Phrases about a stage's steps in the subspace of snapshots and their cost."""
    outcomes = f"{found.full} whole, {found.shortened} shortened, {found.rejected} rejected"
    return [
        f"{found.stage}: {readable.share(found.explained_variance)} of the variance explained",
        *([f"steps {outcomes}"] if found.searched else []),
        f"gradient share {readable.share(found.gradient_share)}",
        cost.describe([found]),
    ]


def waiting(status: Status, now: float) -> str:
    """Why the current stage does not train at the moment; '' if it does."""
    ranks = status.ranks
    if status.phase == "Restarting" or (status.restart_time and pods.seconds(status.restart_time) > now):
        return f"restarting in {readable.duration(pods.seconds(status.restart_time) - now)}"
    if status.phase == "Starting":
        compiling = status.progress is not None and status.progress.state == "Compiling"
        return "compiling the graphs" if compiling else f"starting, {ranks.running}/{ranks.desired} ranks run"
    if status.phase == "Queued":
        return queued(status, now)
    return {"Suspending": "stopping", "Suspended": "stopped", "Pending": "waiting"}.get(status.phase, "")


def queued(status: Status, now: float | None, queue: str = "") -> str:
    """That a job waits for its queue's admission, in which queue and for how long; `now` None leaves the time out."""
    since = statuses.queued_since(status)
    where = f" in {queue}" if queue else ""
    if since is None or now is None:
        return f"queued{where}"
    return f"queued{where} for {readable.duration(now - pods.seconds(since))}"


def fit(phrases: Sequence[str], width: int) -> str:
    """As many phrases as fit, in order; at least one, cut if necessary."""
    text = phrases[0] if phrases else ""
    for phrase in phrases[1:]:
        if len(text) + len(SEPARATOR) + len(phrase) > width:
            break
        text += SEPARATOR + phrase
    return readable.cut(text, width)


def attempt(ended: Attempt) -> str:
    """How an attempt ended, and why."""
    who = f"rank {ended.rank}{f' on {ended.node}' if ended.node else ''}" if ended.rank is not None else None
    code = f"exit code {ended.exit_code}" if ended.exit_code is not None else None
    step = f"after step {ended.last_step}" if ended.last_step is not None else None
    rule = f"by rule {ended.rule}" if ended.rule is not None else None
    killed = (ended.exit_code or 0) > 128 and ended.reason != failures.OUT_OF_MEMORY.name
    # The end of a killed rank's log says what it did, not why it ended.
    words = [] if killed else ended.message.strip().splitlines()[-1:]
    return SEPARATOR.join(filter(None, [f"{ended.stage} ended with {ended.reason}", who, code, step, rule, *words]))


def roll_back(found: RollBack) -> str:
    """Where a stage diverged, and what was done about it."""
    to = "" if found.to_step is None else f" to step {found.to_step}" if found.to_step else " to its start"
    parts = [f"{found.stage} diverged at step {found.from_step} of attempt {found.attempt} and went back{to}"]
    if found.skip_to_batch is not None:
        parts.append("the batches in between are skipped")
    return SEPARATOR.join([*parts, f"learning rate x {found.learning_rate_factor:g}"])


def slow(found: Straggler, now: float) -> str:
    """A slow rank: where it is, how slow, and since when."""
    pod = f" (pod {found.index})" if found.index != found.rank else ""
    node = f" on {found.node}" if found.node else ""
    device = f", device {found.device}" if found.device is not None else ""
    parts = [f"rank {found.rank}{pod}{node}{device}", f"{readable.quantity(1000 * found.seconds)} ms to compute a step"]
    if found.median:
        parts.append(f"{found.seconds / found.median:.1f} times the gang's median")
    if found.since is not None:
        parts.append(f"for {readable.duration(now - pods.seconds(found.since))}")
    return SEPARATOR.join(parts)


def progress_of(stage: StageStatus, status: Status) -> Progress | None:
    """The progress, if it belongs to this stage."""
    progress = status.progress
    return progress if progress is not None and progress.stage == stage.name else None
