"""The recorded evaluation of a run by class, and its picture: confusion matrix and calibration."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from resnetboost_api import evaluation_details
from resnetboost_api.evaluation_details import EvaluationDetails
from resnetboost_operator import readable
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs.runfolder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 30  # on an axis; more classes are shown by number
_MOST_CELLS = 1000  # on a side: the classes of a larger matrix are merged for the picture
_BAR, _IDEAL = "#0072B2", "#7f7f7f"


def newest(folder: RunFolder) -> EvaluationDetails | None:
    """The details of the newest checkpoint that has any, from the last stage with such a checkpoint."""
    job = folder.read_job()
    for stage in reversed(job["spec"]["stages"]):
        place = folder.checkpoints / job["metadata"]["uid"] / stage["name"]
        found = sorted(place.glob(f"attempt-[0-9]*/step-[0-9]*/*{evaluation_details.FILE}"), key=_age)
        for path in reversed(found):
            if (details := read(path)) is not None:
                return details
    return None


def _age(path: Path) -> tuple[int, int, int]:
    """Sort key by attempt, step and time."""
    attempt, step = (int(folder.name.partition("-")[2]) for folder in (path.parent.parent, path.parent))
    return attempt, step, path.stat().st_mtime_ns


def read(path: Path) -> EvaluationDetails | None:
    """Read a file of details; None if it is damaged or too large."""
    try:
        return (
            evaluation_details.decode(path.read_bytes())
            if path.stat().st_size <= evaluation_details.MAX_BYTES
            else None
        )
    except ValueError:
        return None


def draw(details: EvaluationDetails) -> bytes:
    """Draw the confusion matrix and the accuracy by confidence as PNG. Raises `UserError` without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"a picture needs {error.name}; pip install {error.name}") from None
    from resnetboost_operator.runs.curves import STYLE

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 6.5), dpi=110, layout="constrained")
        matrix, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_confusion(matrix, details)
        _draw_calibration(bars, details)
        png = BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def _draw_confusion(axes: "Axes", details: EvaluationDetails) -> None:
    """Draw each row as shares of its class: classes may differ in size."""
    count = len(details.classes)
    merged = -(-count // _MOST_CELLS)  # this many classes are one cell
    side = -(-count // merged)
    cells, sizes = [[0.0] * side for _ in range(side)], [0] * side
    for actual, taken, images in details.confusion:
        cells[actual // merged][taken // merged] += images
        sizes[actual // merged] += images
    shares = [[value / max(1, size) for value in row] for row, size in zip(cells, sizes, strict=True)]
    extent = (-0.5, side * merged - 0.5, side * merged - 0.5, -0.5)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", extent=extent)
    axes.set_title("Confusion matrix")
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.grid(False)
    if count <= MOST_NAMES:
        names = [readable.cut(readable.printable(found.name), 20).replace("$", r"\$") for found in details.classes]
        axes.set_xticks(range(count), names, rotation=90, fontsize=8)
        axes.set_yticks(range(count), names, fontsize=8)
    axes.figure.colorbar(picture, ax=axes, label="share of the class", shrink=0.8)


def _draw_calibration(axes: "Axes", details: EvaluationDetails) -> None:
    """Draw the accuracy of each bin, which is on the diagonal if the probabilities are right."""
    width = 1 / len(details.bins)
    axes.bar(
        [(place + 0.5) * width for place in range(len(details.bins))],
        [found.accuracy or 0.0 for found in details.bins],
        width=0.9 * width,
        color=_BAR,
        label="accuracy",
    )
    axes.plot([0, 1], [0, 1], color=_IDEAL, linestyle="--", label="calibrated")
    axes.set_title(f"Calibration, expected error {details.calibration_error:.4f}")
    axes.set_xlabel("probability of the predicted class")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left", fontsize=9)
