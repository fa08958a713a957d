"""The doctor's checks of a machine: every finding, by files and programs of a made-up machine."""

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from beds.operator.wait import eventually
from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor import (
    ascend,
    compiler,
    cores,
    disk,
    host,
    memory,
    mindspore,
    nvidia,
    ports,
    registry,
    shared_memory,
)
from resnetboost_trainer.doctor.check import GIB, MIB, Subject
from resnetboost_trainer.doctor.host import Host, Space


class Machine(Host):
    """A machine whose files and programs are in a folder; `python` answers what a test says."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.programs = folder / "programs"
        self.programs.mkdir()
        super().__init__(folder / "root", {"PATH": f"{self.programs}:/usr/bin:/bin", **variables})
        self.root.mkdir()
        self.answers: list[host.Output] = []
        self.spaces: dict[str, Space | None] = {}

    def file(self, name: str, text: str = "") -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python(self, script: str, seconds: float, **more: str) -> host.Output:
        return self.answers.pop(0)

    def space(self, name: str) -> Space | None:
        return self.spaces[name] if name in self.spaces else super().space(name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def levels(found: Iterable[Finding]) -> Mapping[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for one in found:
        grouped.setdefault(one.check, []).append(one.level)
        assert one.message and (one.level == "ok") == (one.remedy == ""), "each finding but ok has a remedy"
    return grouped


def subject(machine: Machine) -> Subject:
    return Subject(machine, Path("runs"))


def one(found: Iterable[Finding]) -> Finding:
    (finding,) = found
    return finding


@pytest.mark.parametrize(
    ("files", "variables", "level", "words"),
    [
        ({}, {}, "ok", "usable of"),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, {}, "ok", "the container's quota is 1.5"),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, {}, "warning", "1 usable"),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            {},
            "warning",
            "quota is 1",
        ),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, {}, "ok", "usable of"),
        ({"/proc/loadavg": "900.1 1 1 1/1 1"}, {}, "warning", "want to run"),
        ({}, {"OMP_NUM_THREADS": "9999"}, "warning", "OMP_NUM_THREADS is 9999"),
    ],
)
def test_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    variables: dict[str, str],
    level: str,
    words: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    machine = Machine(tmp_path, **variables)
    for name, text in files.items():
        machine.file(name, text)
    found = one(cores.check(subject(machine)))
    assert (found.level, words in found.message) == (level, True), found


@pytest.mark.parametrize(
    ("free", "limit", "used", "level"),
    [
        (8 * GIB, None, 0, "ok"),
        (1 * GIB, None, 0, "warning"),
        (300 * MIB, None, 0, "problem"),
        (8 * GIB, 2 * GIB, 1 * GIB, "warning"),
        (8 * GIB, 2 * GIB, 2 * GIB, "problem"),
        (8 * GIB, 9223372036854771712, 0, "ok"),
    ],
)
def test_memory(machine: Machine, free: int, limit: int | None, used: int, level: str) -> None:
    machine.file("/proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {free // 1024} kB\n")
    if limit is not None:
        machine.file("/sys/fs/cgroup/memory.max", f"{limit}\n")
        machine.file("/sys/fs/cgroup/memory.current", f"{used}\n")
    assert one(memory.check(subject(machine))).level == level


def test_memory_without_proc(machine: Machine) -> None:
    assert one(memory.check(subject(machine))).level == "warning"


def test_shared_memory_matters_where_devices_are(machine: Machine) -> None:
    machine.spaces["/dev/shm"] = Space(64 * MIB, 64 * MIB)
    assert one(shared_memory.check(subject(machine))).level == "ok"
    machine.file("/dev/nvidia0")
    assert "64 MiB" in one(shared_memory.check(subject(machine))).message
    assert one(shared_memory.check(subject(machine))).level == "warning"
    machine.spaces["/dev/shm"] = None
    assert one(shared_memory.check(subject(machine))).level == "warning"


def test_disk(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for name in ("/data", "/tmp"):
        machine.path(name).mkdir()
        machine.spaces[name] = Space(100 * GIB, 50 * GIB)
    here = Subject(machine, Path("/data"))
    assert levels(disk.check(here)) == {"disk": ["ok", "ok"]}
    machine.spaces["/data"] = Space(100 * GIB, GIB)
    assert levels(disk.check(here)) == {"disk": ["warning", "ok"]}
    machine.spaces["/data"] = Space(100 * GIB, MIB)
    assert levels(disk.check(here)) == {"disk": ["problem", "ok"]}
    machine.path("/tmp").rmdir()
    assert levels(disk.check(here)) == {"disk": ["problem", "problem"]}
    assert not list(machine.path("/data").iterdir()), "it leaves nothing behind"


def test_ports(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as here, socket.socket() as everywhere, socket.socket() as free:
        for listener, address in ((here, "127.0.0.1"), (everywhere, ""), (free, "127.0.0.1")):
            listener.bind((address, 0))
        here.listen()
        everywhere.listen()
        numbers = [listener.getsockname()[1] for listener in (here, everywhere, free)]
        free.close()
        monkeypatch.setattr(ports, "PORTS", dict(zip(("one", "two", "three"), numbers, strict=True)))
        found = list(ports.check(subject(machine)))
    assert [finding.level for finding in found] == ["warning", "problem", "ok"]
    assert str(numbers[1]) in found[1].message and str(numbers[2]) in found[2].message


@pytest.mark.parametrize(
    ("code", "text", "level", "words"),
    [
        (0, "''", "ok", "built and load"),
        (0, "None", "warning", "no C++ operators"),
        (0, "'operators.so is of other sources; run ...'", "warning", "of other sources"),
        (-11, "", "warning", "ended with -11"),
    ],
)
def test_operators(machine: Machine, code: int, text: str, level: str, words: str) -> None:
    machine.answers = [host.Output(code, text)]
    found = one(compiler.check(subject(machine)))
    assert (found.level, words in found.message) == (level, True), found


@pytest.mark.parametrize(
    ("output", "level", "words"),
    [
        (host.Output(0, "imported 2.10.0 1.26.4"), "ok", "2.10.0"),
        (host.Output(0, "imported 2.3.1 1.26.4"), "warning", "tested with 2.10.0"),
        (host.Output(1, "Traceback ...\nImportError: libgomp.so.1: cannot open\n"), "problem", "libgomp.so.1"),
        (host.Output(-11, ""), "problem", "exit code -11"),
        (host.Output(None, ""), "problem", "did not answer within"),
    ],
)
def test_mindspore(machine: Machine, output: host.Output, level: str, words: str) -> None:
    machine.answers = [output]
    found = one(mindspore.check(subject(machine)))
    assert (found.level, words in found.message) == (level, True), found


@pytest.mark.parametrize(
    ("output", "level"),
    [
        (host.Output(0, "computed True"), "ok"),
        (host.Output(0, "computed False"), "problem"),
        (host.Output(1, "RuntimeError: no device\n"), "problem"),
        (host.Output(None, ""), "problem"),
    ],
)
def test_mindspore_computes_on_each_kind_of_device(machine: Machine, output: host.Output, level: str) -> None:
    machine.file("/dev/davinci0")
    machine.file("/dev/nvidia0")
    machine.answers = [host.Output(0, "imported 2.10.0 1.26.4"), output, host.Output(0, "computed True")]
    assert levels(mindspore.check(subject(machine))) == {"mindspore": ["ok"], "device": [level, "ok"]}


NPUS = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                              |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 94.4        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3294 / 65536         |
| 1     910B3               | {health}      | 94.4        38                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3294 / 65536         |
+===========================+===============+====================================================+
"""


def npus(machine: Machine, health: str = "OK", cann: str = "8.5.0") -> None:
    """Two NPUs with everything they need."""
    for number in (0, 1):
        machine.file(f"/dev/davinci{number}")
    machine.file("/dev/davinci_manager")
    machine.file(ascend.DRIVER, "Version=24.1.rc2\nascendhal_version=7.35\n")
    machine.file(f"{ascend.TOOLKIT}/compiler/version.info", f"Version={cann}\nversion_dir=8\n")
    machine.file(ascend.HCCN, "address_0=10.0.0.1\nnetmask_0=255.255.0.0\naddress_1=10.0.0.2\n")
    machine.program("npu-smi", "cat <<'END'\n" + NPUS.format(health=health) + "END")
    machine.program("hccn_tool", "echo link status: UP")


def test_npus_in_order(machine: Machine) -> None:
    npus(machine)
    found = list(ascend.check(subject(machine)))
    assert levels(found) == {"ascend": ["ok"], "cann": ["ok"], "npu-smi": ["ok"], "hccn": ["ok", "ok"]}
    assert not any("10.0.0" in finding.message for finding in found), "addresses are nobody's business"


def test_no_npu_is_no_finding(machine: Machine) -> None:
    assert list(ascend.check(subject(machine))) == []
    machine.file("/dev/davinci_manager")
    assert ascend.devices(machine) == []


def test_an_npu_in_bad_health_is_named(machine: Machine) -> None:
    npus(machine, health="Alarm")
    (found,) = (finding for finding in ascend.check(subject(machine)) if finding.check == "npu-smi")
    assert (found.level, "1 Alarm" in found.message) == ("problem", True)


def test_a_driver_without_npus_and_npus_without_a_driver(machine: Machine) -> None:
    machine.file(ascend.DRIVER, "Version=24.1.rc2\n")
    assert levels(ascend.check(subject(machine)))["ascend"] == ["warning"]
    machine.path(ascend.DRIVER).unlink()
    machine.file("/dev/davinci0")
    found = levels(ascend.check(subject(machine)))
    assert (found["ascend"], found["cann"], found["npu-smi"]) == (["problem"], ["problem"], ["warning"])


@pytest.mark.parametrize(
    ("version", "level"), [("8.5.0", "ok"), ("9.1", "ok"), ("7.0.1", "warning"), ("8.50", "warning")]
)
def test_cann_fits_mindspore(machine: Machine, version: str, level: str) -> None:
    npus(machine, cann=version)
    assert levels(ascend.check(subject(machine)))["cann"] == [level]


def test_programs_that_hang_or_fail_are_problems(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    npus(machine)
    monkeypatch.setattr(host, "PROGRAM_SECONDS", 0.2)
    monkeypatch.setattr(Host.run, "__defaults__", (0.2,))
    monkeypatch.setattr(ascend, "_LINK_SECONDS", 0.2)
    for name in ("npu-smi", "hccn_tool"):
        machine.program(name, "exec tail -f /dev/null")
    found = list(ascend.check(subject(machine)))
    assert [finding.message for finding in found if finding.level == "problem"] == [
        "npu-smi info hangs",
        "hccn_tool hangs",
    ]
    machine.program("npu-smi", "echo dcmi model initialized failed; exit 255")
    machine.program("hccn_tool", "echo link status: DOWN")
    problems = [finding.message for finding in ascend.check(subject(machine)) if finding.level == "problem"]
    assert "dcmi model initialized failed" in problems[0] and "card 0, 1 is not UP" in problems[1]


def test_cards_without_addresses(machine: Machine) -> None:
    npus(machine)
    machine.file(ascend.HCCN, "\n")
    assert levels(ascend.check(subject(machine)))["hccn"] == ["warning"]


def gpus(machine: Machine, capability: str = "8.6", errors: str = "0") -> None:
    for name in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        machine.file(name)
    machine.program("nvidia-smi", f"echo '0, NVIDIA A10, 535.104.05, 23028, {capability}, {errors}'")


@pytest.mark.parametrize(
    ("capability", "errors", "level", "words"),
    [
        ("8.6", "0", "ok", "1 GPU (NVIDIA A10"),
        ("9.0", "0", "warning", "compiled up to 8.6"),
        ("8.6", "3", "problem", "memory errors of GPU 0 (3)"),
        ("8.6", "[N/A]", "ok", "NVIDIA A10"),
    ],
)
def test_gpus(machine: Machine, capability: str, errors: str, level: str, words: str) -> None:
    gpus(machine, capability, errors)
    found = [finding for finding in nvidia.check(subject(machine)) if finding.check == "nvidia"]
    assert (one(found).level, words in one(found).message) == (level, True), found
    assert nvidia.devices(machine) == ["/dev/nvidia0"]


def test_gpus_without_cuda(machine: Machine) -> None:
    gpus(machine)
    (found,) = (finding for finding in nvidia.check(subject(machine)) if finding.check == "cuda")
    assert found.level == "problem" and "libcudnn.so.8" in found.message


def test_gpus_whose_program_is_missing_hangs_or_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host.run, "__defaults__", (0.2,))
    gpus(machine)
    machine.program("nvidia-smi", "exec tail -f /dev/null")
    assert levels(nvidia.check(subject(machine)))["nvidia"] == ["problem"]
    machine.program("nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    assert levels(nvidia.check(subject(machine)))["nvidia"] == ["problem"]
    (machine.programs / "nvidia-smi").unlink()
    machine.variables = {"PATH": str(machine.programs)}
    assert levels(nvidia.check(subject(machine)))["nvidia"] == ["warning"]


def test_a_driver_without_gpus(machine: Machine) -> None:
    assert list(nvidia.check(subject(machine))) == []
    machine.file("/proc/driver/nvidia/version", "NVRM version: ...")
    assert levels(nvidia.check(subject(machine))) == {"nvidia": ["warning"]}


def test_a_check_that_breaks_is_a_finding_and_the_others_run(machine: Machine) -> None:
    def broken(_: Subject) -> list[Finding]:
        raise ZeroDivisionError("no cores")

    found = list(
        registry.examine(subject(machine), {"first": broken, "second": lambda _: [findings.ok("second", "x")]})
    )
    assert [(finding.check, finding.level) for finding in found] == [("first", "warning"), ("second", "ok")]
    assert "ZeroDivisionError: no cores" in found[0].message


def test_a_programs_output_is_bounded_and_its_children_end(machine: Machine, tmp_path: Path) -> None:
    left = tmp_path / "left"
    machine.program("chatty", f"tail -f /dev/null & echo $! > {left}; yes | head -c 1000000; echo end")
    answer = machine.run([machine.which("chatty") or ""])
    assert answer.code == 0 and len(answer.text) <= host.OUTPUT_LIMIT and answer.last_line == "end"
    pid = int(left.read_text())
    eventually(lambda: runs(pid), lambda running: not running, "the program's child has ended", 60)


def runs(pid: int) -> bool:
    """False also for a zombie, which its new parent has not looked at yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_lines_and_exit_codes() -> None:
    fine, poor, bad = (
        findings.ok("a", "x\ny\x1b[31m"),
        findings.warning("bb", "y", "do"),
        findings.problem("c", "z", "fix"),
    )
    assert list(findings.lines([fine, poor, bad])) == [
        "ok       a   x y?[31m",
        "warning  bb  y; do",
        "problem  c   z; fix",
        "1 problem, 1 warning, 1 ok",
    ]
    assert [findings.exit_code(found) for found in ([], [fine, poor], [fine, bad])] == [0, 0, 1]
    assert len(findings.ok("a", "x" * 10**6).message) == findings.MESSAGE_LIMIT
