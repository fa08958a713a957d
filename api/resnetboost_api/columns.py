"""The columns of `kubectl get resnetboostjobs`; those of priority 1 are shown with `-o wide` alone."""

from typing import Literal

import msgspec

from resnetboost_api import names


class Column(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One column: the field that it shows, and its type."""

    name: str
    type: Literal["string", "integer", "number", "date"]
    json_path: str
    priority: int = 0
    description: str = ""


COLUMNS = (
    Column(name="Phase", type="string", json_path=".status.phase", description="What the job is doing."),
    Column(name="Stage", type="string", json_path=".status.stage", description="The stage that runs now, or ran last."),
    Column(
        name="Step",
        type="integer",
        json_path=".status.progress.step",
        description="Optimizer steps done in this stage, as rank 0 reported in the last poll, up to 15 s ago.",
    ),
    Column(
        name="Loss",
        type="number",
        json_path=".status.progress.loss",
        description="Mean training loss over the recent steps.",
    ),
    Column(
        name="Accuracy",
        type="number",
        json_path=".status.progress.accuracy",
        description="Mean training accuracy over the recent steps, 0 to 1.",
    ),
    Column(
        name="Top1",
        type="number",
        json_path=".status.progress.top1",
        description="Top-1 accuracy of the last evaluation on the test images, 0 to 1.",
    ),
    Column(
        name="Restarts",
        type="integer",
        json_path=".status.restarts",
        description="How often the gang was started again.",
    ),
    Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),
    Column(
        name="Heard",
        type="date",
        json_path=".status.progress.heartbeatTime",
        priority=1,
        description=(
            "How long ago the operator last saw the ranks move; of a running job more than a minute means that "
            "they hang, or that no operator looks."
        ),
    ),
    Column(
        name="Ranks", type="integer", json_path=".status.ranks.running", priority=1, description="Ranks that run now."
    ),
    Column(
        name="Goodput",
        type="integer",
        json_path=".status.goodput.percent",
        priority=1,
        description="Percent of the attempts' time that went into steps that count.",
    ),
    Column(
        name="Queue",
        type="string",
        json_path=".metadata.labels." + names.LABEL_QUEUE.replace(".", r"\."),
        priority=1,
        description="Kueue's LocalQueue that admits the job.",
    ),
    Column(
        name="Message",
        type="string",
        json_path='.status.conditions[?(@.type=="Running")].message',
        priority=1,
        description="Why the job does not run, or that it does.",
    ),
)
