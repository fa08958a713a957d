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
    """One execution of an operator. `name` includes its scopes, `inputs` its input shapes, if known."""

    name: str
    kind: str
    inputs: str
    begun_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """Duration of the execution."""
        return (self.ended_ns - self.begun_ns) / 1e9


@contextlib.contextmanager
def recorded(folder: Path, device: str) -> Iterator[None]:
    """Record operators with MindSpore's profiler, which writes to a new folder in `folder`.

    On an Ascend device or GPU, launches are blocking, so that the host's clock measures each operator.
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
    """Read the newest recording in a folder, in the order of start times; empty if its file format is unknown.

    The format for CPUs is that of MindSpore 2.10's files; the one for Ascend follows its documentation, unverified.
    """
    recordings = sorted(folder.glob("*_ascend_ms"), key=lambda path: path.stat().st_mtime)
    if not recordings:
        return ()
    found = [*_of_cpu(recordings[-1] / "FRAMEWORK"), *_of_ascend(recordings[-1] / "ASCEND_PROFILER_OUTPUT")]
    return sorted(found, key=lambda execution: execution.begun_ns)


def _of_cpu(folder: Path) -> Sequence[Execution]:
    """Read a CPU recording: times by operator from one file, shapes of the same executions in order from another."""
    times, shapes = folder.glob("cpu_op_execute_timestamp_*.txt"), folder.glob("cpu_framework_*.txt")
    found = sorted((item for path in times for item in _times(path)), key=lambda execution: execution.begun_ns)
    given = [line.split(";") for path in shapes for line in path.read_text().splitlines()]
    if len(given) != len(found):
        return found
    return [
        execution._replace(inputs=_inputs(execution, fields)) for execution, fields in zip(found, given, strict=True)
    ]


def _times(path: Path) -> Iterator[Execution]:
    """Parse lines of the form: full name;kind of host;begin in ns,duration in ms,stream begin,duration,stream ..."""
    for line in path.read_text().splitlines():
        name, _, times = line.split(";")
        kind = name.rpartition("/")[2].rpartition("-op")[0]
        for text in times.split():
            begun, milliseconds, *_ = text.split(",")
            yield Execution(name, kind, "", int(begun), int(begun) + round(1e6 * float(milliseconds)))


def _inputs(execution: Execution, fields: Sequence[str]) -> str:
    """Return the tensors' shapes if the fields (type;name;thread;input_1:[64, 3] ...) belong to that operator."""
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
