"""Writes report.html and report.png of a run from its folder."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from string import Template
from typing import Any, TypeVar

from resnetboost_api.evaluation_details import EvaluationDetails
from resnetboost_api.status import Attempt, Goodput, StageStatus, Status
from resnetboost_operator import lost_time, readable, yamltext
from resnetboost_operator import status as statuses
from resnetboost_operator.errors import UserError
from resnetboost_operator.observed import pods
from resnetboost_operator.runs import adasum, cost, curves, details, losses, metricsfile, noise, pca, thor
from resnetboost_operator.runs.adasum import Sums
from resnetboost_operator.runs.cost import Cost
from resnetboost_operator.runs.curves import Did
from resnetboost_operator.runs.losses import Loss
from resnetboost_operator.runs.noise import Noise
from resnetboost_operator.runs.pca import Descent
from resnetboost_operator.runs.runfolder import RunFolder, write
from resnetboost_operator.runs.thor import Updates

Manifest = Mapping[str, Any]
Cells = Sequence[object]
_Found = TypeVar("_Found", bound=Cost | Loss | Noise)

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
.result { font-size: 1.1rem; margin: .3rem 0 1.5rem }
.Complete { color: #176f3d } .Failed { color: #a8201a } .other { color: #8a5a00 }
img { width: 100%; height: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0 }
th, td { border-bottom: 1px solid #e6e6e6 }
th { font-weight: 600; color: #555 }
td { overflow-wrap: anywhere; white-space: pre-wrap }
.bar { display: flex; height: 1.4rem; border-radius: 3px; overflow: hidden; margin: .5rem 0 }
.bar span { display: block } .key { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 13px }
</style>
</head>
<body>
<h1>$title</h1>
<p class="result $tone">$result</p>
$picture
$sections
</body>
</html>
""")

_ATTEMPT_COLUMNS = (
    "Attempt",
    "Stage",
    "Ended with",
    "Rank",
    "Exit code",
    "Last step",
    "Checkpoint",
    "Ran",
    "Message",
)
_STAGE_COLUMNS = ("Stage", "State", "Attempts", "Top-1", "Top-5", "Test loss", "Images skipped")
_EVALUATION_COLUMNS = ("Stage", "Best checkpoint", "By", "Value", "Ended early")
_CLASS_COLUMNS = ("Class", "Images", "Recall", "Precision")
MOST_CLASSES = 100  # with a row in the report
_LOSS_ROWS = (
    "Function",
    "Teacher",
    "Label smoothing",
    "Precision",
    "Loss scale",
    "Steps left out, as gradients overflowed",
)
_NOISE_ROWS = ("Global batch, images", "Noise scale in the middle of the steps, images", "At their end, images")
_CURVATURE_ROWS = (
    "Updates",
    "Time in updates",
    "A step, median",
    "Layers updated",
    "Layers stopped for good",
    "Layers that could not be inverted",
    "Damping",
)
_SUMS_ROWS = (
    "Sums",
    "Time in sums",
    "Gain over the mean",
    "Cosine of two summands",
)
_DESCENT_ROWS = (
    "Steps",
    "Time in the subspace",
    "Variance explained",
    "Whole steps",
    "Shortened steps",
    "Rejected steps",
    "Evaluations of the loss in a step, mean",
    "Share of the gradient in the subspace",
)

# The colours of the job's dashboard.
_PRODUCTIVE = "Steps that count"
COLOURS = {
    _PRODUCTIVE: "#73bf69",
    lost_time.RESTART: "#ff9830",
    lost_time.REPLAY: "#c4162a",
    lost_time.DETECTION: "#fade2a",
    lost_time.PREFLIGHT: "#b877d9",
    lost_time.OVERHEAD: "#5794f2",
    lost_time.QUEUEING: "#9fa7b3",
}
_OTHER_COLOUR = "#555555"


def write_report(folder: RunFolder) -> None:
    """Write both files. Without a measured step there is no picture."""
    if not folder.in_use():  # who runs it merges
        metricsfile.merge(folder)
    job, status = folder.read_job(), folder.read_status()
    measured = metricsfile.current(folder)
    did = Did(
        thor.by_stage(measured),
        adasum.by_stage(measured, job),
        pca.by_stage(measured),
        curves.changed_ranks(measured),
    )
    png = _drawn(measured, title(job), did)
    if png:
        write(folder.report_png, png)
    loss = losses.by_stage(measured, job)
    found = details.newest(folder)
    noises = noise.by_stage(measured, job)
    write(folder.report_html, page(job, status, folder.read_environment(), png, did, loss, found, noises))


def _drawn(measured: metricsfile.Measured, heading: str, did: Did) -> bytes:
    try:
        return curves.draw(measured, heading, did) if measured.steps else b""
    except ImportError as error:
        raise UserError(f"a report needs {error.name}; pip install {error.name}") from None


def title(job: Manifest) -> str:
    """One line about the job."""
    spec = job["spec"]
    counts = [stage.get("deviceCount", spec["device"]["count"]) for stage in spec["stages"]]
    ranks = readable.ranks(spec["device"]["type"], counts)
    return f"{job['metadata']['name']}: {spec['model']['name']} on {spec['dataset']['name']}, {ranks}"


def page(
    job: Manifest,
    status: Status,
    environment: Mapping[str, str],
    png: bytes,
    did: Did,
    loss: Sequence[Loss] = (),
    by_class: EvaluationDetails | None = None,
    noises: Sequence[Noise] = (),
) -> str:
    """The HTML document. All text of jobs, messages and logs is escaped: it is untrusted."""
    sections = (
        _section("Stages", _table(_STAGE_COLUMNS, map(_stage_cells, status.stages))),
        _section("Best checkpoints and early ends", _table(_EVALUATION_COLUMNS, _evaluations(status.stages))),
        _section("Loss", _by_stage(_LOSS_ROWS, loss, _loss_cells)),
        _section("Gradient noise", _by_stage(_NOISE_ROWS, noises, _noise_cells)),
        _section("Updates of the curvature", _by_stage(_CURVATURE_ROWS, did.updates, _curvature_cells)),
        _section("Adaptive sums", _by_stage(_SUMS_ROWS, did.sums, _sums_cells)),
        _section("Descent in a subspace", _by_stage(_DESCENT_ROWS, did.descents, _descent_cells)),
        _section("Evaluation by class", _by_class(by_class)),
        _section("Time", _time(status.goodput)),
        _section("Failed attempts", _table(_ATTEMPT_COLUMNS, map(_attempt_cells, status.attempts))),
        _section("Job", f"<pre>{escape(yamltext.dump(dict(job)))}</pre>"),
        _section("Environment", _table((), environment.items())),
    )
    return _PAGE.substitute(
        title=escape(title(job)),
        tone=status.phase if status.phase in ("Complete", "Failed") else "other",
        result=escape(result(status)),
        picture=_picture(png, did.names),
        sections="\n".join(section for section in sections if section),
    )


def result(status: Status) -> str:
    """One line about the result of the run."""
    restarts = readable.plural(status.restarts, "restart")
    if status.phase == "Complete" and status.stages:
        top1 = status.stages[-1].top1
        reached = f", top-1 {readable.share(top1)}" if top1 is not None else ""
        return f"Complete{reached}, {restarts}{_took(status)}"
    failed = statuses.condition(status, "Failed")
    if failed is not None:
        return f"Failed: {failed.message}"
    step = f" at step {status.progress.step}" if status.progress is not None else ""
    return f"{status.phase if status.stage or status.progress else 'Not begun'}{step}, {restarts}"


def _took(status: Status) -> str:
    seconds = pods.seconds(status.completion_time) - pods.seconds(status.start_time)
    return f", {readable.duration(seconds)}" if seconds > 0 else ""


def _picture(png: bytes, more: Sequence[str]) -> str:
    if not png:
        return "<p>No step was measured.</p>"
    *shown, last = ("loss", "accuracy", "step time", *more)
    data = base64.b64encode(png).decode()
    return f'<img alt="{", ".join(shown)} and {last} over steps" src="data:image/png;base64,{data}">'


def _stage_cells(stage: StageStatus) -> Sequence[object]:
    shares = [readable.share(value) if value is not None else None for value in (stage.top1, stage.top5)]
    loss = readable.quantity(stage.test_loss) if stage.test_loss is not None else None
    return (stage.name, stage.state, stage.attempts, *shares, loss, stage.skipped_images or None)


def _evaluations(stages: Iterable[StageStatus]) -> Iterator[Cells]:
    """A row for each stage that has kept a best checkpoint or ended before its last epoch."""
    for stage in stages:
        best, early = stage.best, stage.stopped_early
        found = (f"step {best.step}", best.metric, f"{best.value:.6g}") if best is not None else (None,) * 3
        if best is not None or early is not None:
            yield stage.name, *found, f"step {early.step}: {early.message}" if early is not None else None


def _attempt_cells(attempt: Attempt) -> Sequence[object]:
    ran = pods.seconds(attempt.end_time) - pods.seconds(attempt.start_time) if attempt.start_time else None
    return (
        attempt.attempt,
        attempt.stage,
        attempt.reason,
        attempt.rank,
        attempt.exit_code,
        attempt.last_step,
        attempt.checkpoint_step,
        readable.duration(ran) if ran is not None else None,
        attempt.message,
    )


def _time(found: Goodput | None) -> str:
    """A bar of the devices' time: what counts, and what was lost by cause; then a row for each."""
    if found is None or not found.attempt_seconds:
        return ""
    found = lost_time.complete(found)
    parts = {_PRODUCTIVE: found.productive_device_seconds} | lost_time.by_cause(found)
    known = [(cause, seconds, COLOURS.get(cause, _OTHER_COLOUR)) for cause, seconds in parts.items() if seconds]
    bar = "".join(f'<span style="flex: {seconds}; background: {colour}"></span>' for _, seconds, colour in known)
    rows = "\n".join(_time_row(cause, seconds, colour, sum(parts.values())) for cause, seconds, colour in known)
    return f'<div class="bar">{bar}</div>\n<table>\n{rows}\n</table>'


def _time_row(cause: str, seconds: int, colour: str, whole: int) -> str:
    key = f'<span class="key" style="background: {colour}"></span>'
    cells = (escape(text) for text in (cause, readable.duration(seconds), readable.share(seconds / whole)))
    return f"<tr><td>{key} " + "</td><td>".join(cells) + "</td></tr>"


def _by_stage(rows: Sequence[str], stages: Sequence[_Found], cells: Callable[[_Found], Cells]) -> str:
    """A table column for each of these stages."""
    columns = map(cells, stages)
    return _table(("", *(found.stage for found in stages)), zip(rows, *columns, strict=True)) if stages else ""


def _loss_cells(loss: Loss) -> Sequence[object]:
    least, greatest = loss.scales
    scale = f"{least:g}" if least == greatest else f"{least:g} to {greatest:g}"
    left_out = f"{loss.left_out} of {loss.steps}"
    return (loss.function, loss.teacher, loss.smoothing, loss.precision, scale if least == least else None, left_out)


def _noise_cells(found: Noise) -> Sequence[object]:
    return found.batch, readable.quantity(found.middle), readable.quantity(found.last)


def _curvature_cells(updates: Updates) -> Sequence[object]:
    layers, damping = updates.layers, updates.damping
    renewed = sum(layers["updated"])
    return (
        len(updates.steps),
        cost.describe([updates]),
        f"{_milliseconds(updates.with_seconds)} with an update, {_milliseconds(updates.without_seconds)} without",
        f"{renewed} of {updates.candidates}, {readable.share(renewed / max(1, updates.candidates))}",
        f"{max(layers['stopped'])} of {sum(counts[-1] for counts in layers.values())}",
        sum(layers["failed"]),
        f"{damping[0]:.3g} to {damping[-1]:.3g}",
    )


def _sums_cells(sums: Sums) -> Sequence[object]:
    least = readable.quantity(sums.least_cosine)
    return (
        f"{sums.steps} of {readable.plural(sums.summands, 'summand')}",
        cost.describe([sums]),
        f"{readable.quantity(sums.gain)}; 1 if all agree, {sums.summands} if they are independent",
        f"{readable.quantity(sums.cosine)}; {least} at least, of one tensor in one step",
    )


def _descent_cells(descent: Descent) -> Sequence[object]:
    course = f"{readable.share(descent.first_gradient_share)} at first, {readable.share(descent.last_gradient_share)}"
    outcomes = [
        f"{count}, {readable.share(count / descent.searched)}" if descent.searched else None
        for count in (descent.full, descent.shortened, descent.rejected)
    ]
    return (
        descent.steps,
        cost.describe([descent]),
        readable.share(descent.explained_variance),
        *outcomes,
        readable.quantity(descent.evaluations) if descent.searched else None,
        f"{readable.share(descent.gradient_share)} in the mean; {course} at last",
    )


def _by_class(found: EvaluationDetails | None) -> str:
    """The picture, and a row per class: of many those with the lowest recall."""
    if found is None:
        return ""
    known = [result for result in found.classes if result.recall is not None]
    if len(known) > MOST_CLASSES:
        known = sorted(known, key=lambda result: result.recall or 0.0)[:MOST_CLASSES]
    rows = ((result.name, result.images, _share(result.recall), _share(result.precision)) for result in known)
    which = f"; the {MOST_CLASSES} classes with the lowest recall" if len(known) < len(found.classes) else ""
    origin = f"{readable.plural(found.images, 'test image')} of {found.dataset}, step {found.step}"
    picture = base64.b64encode(details.draw(found)).decode()
    return (
        f"<p>{escape(origin + (', averaged weights' if found.averaged else '') + which)}.</p>\n"
        f'<img alt="confusion matrix and calibration" src="data:image/png;base64,{picture}">\n'
        f"{_table(_CLASS_COLUMNS, rows)}"
    )


def _share(value: float | None) -> str | None:
    return None if value is None else readable.share(value)


def _milliseconds(seconds: float) -> str:
    return f"{readable.quantity(1000 * seconds)} ms" if seconds == seconds else "–"


def _section(heading: str, content: str) -> str:
    return f"<h2>{escape(heading)}</h2>\n{content}" if content else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "\n".join(_row("td", row) for row in rows)
    head = _row("th", columns) if columns else ""
    return f"<table>\n{head}\n{body}\n</table>" if body else ""


def _row(tag: str, cells: Sequence[object]) -> str:
    texts = ("–" if cell is None else escape(str(cell)) for cell in cells)
    return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"
