"""Records operators with MindSpore's profiler and reads their times on the host's clock."""

import contextlib
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import mindspore
from mindspore.profiler import ProfilerActivity

_SHAPE = re.compile(r"\[([\d, ]*)\]")


class Execution(NamedTuple):
    """One operator run once. `name` has the scopes it was built in, `inputs` the shapes it was given, if known."""

    name: str
    kind: str
    inputs: str
    begun_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return (self.ended_ns - self.begun_ns) / 1e9


@contextlib.contextmanager
def recorded(folder: Path, device: str) -> Iterator[None]:
    """Have MindSpore's profiler write into a new folder in `folder` what runs meanwhile.

    On an Ascend device or GPU an operator is waited for before the next one, so that the host's clock means something.
    """
    activities = [ProfilerActivity.CPU]
    if device != "CPU":
        mindspore.runtime.launch_blocking()
        activities.append(ProfilerActivity.NPU if device == "Ascend" else ProfilerActivity.GPU)
    ready = mindspore.profiler.tensorboard_trace_handler(dir_name=str(folder), analyse_flag=device != "CPU")
    profiler = mindspore.profiler.profile(activities=activities, start_profile=False, on_trace_ready=ready)
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()


def executions(folder: Path) -> Sequence[Execution]:
    """What the newest recording in that folder has, in the order it began; none where its files are of no known form.

    MindSpore 2.10's files of a CPU have been seen, those of an Ascend device are read as its documentation has them.
    """
    recordings = sorted(folder.glob("*_ascend_ms"), key=lambda path: path.stat().st_mtime)
    if not recordings:
        return ()
    found = [*_of_cpu(recordings[-1] / "FRAMEWORK"), *_of_ascend(recordings[-1] / "ASCEND_PROFILER_OUTPUT")]
    return sorted(found, key=lambda execution: execution.begun_ns)


def _of_cpu(folder: Path) -> Sequence[Execution]:
    """Times by operator in one file, shapes of the same executions in their order in another."""
    times, shapes = folder.glob("cpu_op_execute_timestamp_*.txt"), folder.glob("cpu_framework_*.txt")
    found = sorted((item for path in times for item in _times(path)), key=lambda execution: execution.begun_ns)
    given = [line.split(";") for path in shapes for line in path.read_text().splitlines()]
    if len(given) != len(found):
        return found
    return [
        execution._replace(inputs=_inputs(execution, fields)) for execution, fields in zip(found, given, strict=True)
    ]


def _times(path: Path) -> Iterator[Execution]:
    """Lines are: full name;kind of host;begin in ns,duration in ms,stream begin,duration,stream ..."""
    for line in path.read_text().splitlines():
        name, _, times = line.split(";")
        kind = name.rpartition("/")[2].rpartition("-op")[0]
        for text in times.split():
            begun, milliseconds, *_ = text.split(",")
            yield Execution(name, kind, "", int(begun), int(begun) + round(1e6 * float(milliseconds)))


def _inputs(execution: Execution, fields: Sequence[str]) -> str:
    """The tensors' shapes, if these fields (type;name;thread;input_1:[64, 3] ...) are of that operator."""
    if fields[1] != execution.name.rpartition("/")[2]:
        return ""
    return _joined(fields[3:])


def _joined(texts: Iterable[str]) -> str:
    shapes = (match[1].replace(", ", "x") for text in texts for match in _SHAPE.finditer(text))
    return " ".join(shape for shape in shapes if shape)


def _of_ascend(folder: Path) -> Iterator[Execution]:
    for path in folder.glob("kernel_details.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                begun = round(1000 * float(row["Start Time(us)"].strip()))
                ended = begun + round(1000 * float(row["Duration(us)"].strip()))
                yield Execution(row["Name"], row["Type"], row.get("Input Shapes") or "", begun, ended)
