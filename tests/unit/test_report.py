"""report.html and report.png are made from the run folder alone, with all hostile text escaped."""

import html.parser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from resnetboost_api.evaluation_details import Bin, ClassResult, EvaluationDetails
from resnetboost_api.status import Attempt, Condition, Goodput, Loss, Progress, StageStatus, Status
from resnetboost_operator.runs import report
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from resnetboost_operator.validation import jobfile, schema

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
HOSTILE = "<script>alert('1')</script> & \"quoted\""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return open_for_run(tmp_path / "run")


def begin(folder: RunFolder, status: Status, steps: int = 30, **stage: Any) -> Path:
    job = schema.defaulted(jobfile.load(EXAMPLE))
    job["spec"]["stages"][0] |= stage
    job = folder.enter(job)
    folder.write_status(status)
    folder.write_environment({"host": HOSTILE})
    own: Path = folder.checkpoints / job["metadata"]["uid"] / "base" / "attempt-0"
    own.mkdir(parents=True)
    rows = [f"{n},{1 / n},0.5,0.1,0.08,0.01,0.001,{0.9 if n % 10 == 0 else ''},0.5\n" for n in range(1, steps + 1)]
    header = "step,loss,accuracy,step_seconds,compute_seconds,collective_seconds,data_wait_seconds,top1,test_loss\n"
    (own / "metrics.csv").write_text(header + "".join(rows))
    return own / "metrics.csv"


COMPLETE = Status(
    phase="Complete",
    restarts=1,
    start_time="2026-01-01T00:00:00Z",
    completion_time="2026-01-01T00:01:12Z",
    stages=(StageStatus("base", state="Complete", attempts=2, top1=0.978, top5=1.0, test_loss=0.7),),
    attempts=(
        Attempt(0, "base", "Killed", "2026-01-01T00:00:20Z", exit_code=137, rank=1, last_step=15, message=HOSTILE),
    ),
)


class Page(html.parser.HTMLParser):
    """Tags and text of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_tells_where_the_time_went(folder: RunFolder) -> None:
    lost = (Loss("Restart", 30, "Killed"), Loss("Replay", 10, "Killed"))
    spent = Goodput(attempt_seconds=100, productive_seconds=80, productive_device_seconds=160, percent=80, lost=lost)
    begin(folder, replace(COMPLETE, goodput=spent))
    report.write_report(folder)
    lines = [line.strip() for line in Page(folder.report_html.read_text()).text.splitlines() if line.strip()]
    told = lines[lines.index("Time") + 1 :][:3]
    assert told == ["Steps that count2:4080.0 %", "Restart0:3015.0 %", "Replay0:105.0 %"]


def test_a_report_is_one_page_with_its_picture_in_it(folder: RunFolder) -> None:
    begin(folder, COMPLETE)
    report.write_report(folder)
    page = Page(folder.report_html.read_text())
    assert folder.report_png.read_bytes().startswith(b"\x89PNG")
    assert [source[:22] for source in page.sources] == ["data:image/png;base64,"]
    assert "digits: resnet20 on digits, 2 CPU ranks" in page.text
    assert "Complete, top-1 97.8 %, 1 restart, 1:12" in page.text


def test_a_runs_text_is_escaped(folder: RunFolder) -> None:
    begin(folder, COMPLETE)
    report.write_report(folder)
    page = Page(folder.report_html.read_text())
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) == 2  # the attempt's message and the host name


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ({"labelSmoothing": 0.1, "labelSmoothingOver": "OtherClasses"}, "0.1 over the other classes"),
        ({"labelSmoothing": 0.2}, "0.2 over all classes"),
        ({"labelSmoothing": 0}, "none"),
    ],
)
def test_it_has_label_smoothing_and_skipped_steps(stage: dict[str, Any], told: str, folder: RunFolder) -> None:
    header = "step,loss,accuracy,step_seconds,compute_seconds,collective_seconds,data_wait_seconds,loss_scale,left_out"
    rows = [f"{n},{1 / n},0.5,0.1,0.08,0.01,0.001,{2.0 ** (12 - min(n, 3))},{int(n < 3)}" for n in range(1, 6)]
    begin(folder, COMPLETE, **stage).write_text("\n".join([header, *rows, ""]))
    report.write_report(folder)
    lines = Page(folder.report_html.read_text()).text.splitlines()
    assert f"Label smoothing{told}" in lines
    assert "Loss scale512 to 2048" in lines
    assert "Steps left out, as gradients overflowed2 of 5" in lines


@pytest.mark.parametrize(
    ("stage", "lines"),
    [
        ({}, {"Functioncross entropy", "Teacher–"}),
        ({"loss": {"classWeights": [1, 2]}}, {"Functioncross entropy, weighted classes"}),
        (
            {
                "loss": {
                    "function": "BinaryCrossEntropy",
                    "targetThreshold": 0.2,
                    "classWeighting": "Balanced",
                },
                "distillation": {"teacher": "/runs/large", "which": "Best", "alpha": 0.5, "temperature": 4},
            },
            {
                "Functionbinary cross entropy, targets above 0.2 are 1, balanced classes",
                "Teacher/runs/large, weight 0.5, temperature 4",
            },
        ),
    ],
    ids=["plain", "weighted", "all"],
)
def test_it_has_the_loss_and_the_teacher(stage: dict[str, Any], lines: set[str], folder: RunFolder) -> None:
    begin(folder, COMPLETE, **stage).write_text("step,loss\n1,0.5\n2,0.4\n")
    report.write_report(folder)
    assert lines <= set(Page(folder.report_html.read_text()).text.splitlines())


def test_a_run_without_a_step_has_a_page_but_no_picture(folder: RunFolder) -> None:
    begin(folder, Status(phase="Starting"), steps=0)
    report.write_report(folder)
    assert not folder.report_png.exists()
    assert "No step was measured." in folder.report_html.read_text()


def test_a_single_step_can_be_drawn(folder: RunFolder) -> None:
    begin(folder, Status(phase="Running"), steps=1)
    report.write_report(folder)
    assert folder.report_png.exists()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status(), "Not begun, 0 restarts"),
        (Status(phase="Suspended", progress=Progress(step=12)), "Suspended at step 12, 0 restarts"),
        (
            Status(phase="Failed", conditions=(Condition("Failed", "True", "DataError", "no such file", ""),)),
            "Failed: no such file",
        ),
    ],
    ids=["not begun", "stopped", "failed"],
)
def test_the_result_line_has_the_runs_state(status: Status, words: str) -> None:
    assert report.result(status) == words


def test_a_recorded_evaluation_by_class_is_shown_escaped(folder: RunFolder) -> None:
    own = begin(folder, COMPLETE).parent
    for step, recall in ((10, 0.5), (20, 0.25)):
        found = ClassResult(name=f"{HOSTILE} $x_", images=4, recall=recall, precision=None)
        recorded = EvaluationDetails(
            step=step,
            averaged=False,
            dataset="digits",
            images=8,
            classes=(found, found),
            confusion=((0, 0, 1), (0, 1, 3), (1, 1, 4)),
            calibration_error=0.0625,
            bins=(Bin(images=8, confidence=0.9, accuracy=0.6),),
        )
        place = own / f"step-{step:08}"
        place.mkdir()
        (place / "evaluation.json").write_bytes(msgspec.json.encode(recorded))
    (own / "step-00000020" / "averaged-evaluation.json").write_text("damaged")
    report.write_report(folder)
    text = folder.report_html.read_text()
    assert "8 test images of digits, step 20" in text
    assert "25.0 %" in text
    assert "50.0 %" not in text.split("Evaluation by class")[1].split("<h2>")[0]
    assert text.count("data:image/png;base64,") == 2
    assert HOSTILE not in text
