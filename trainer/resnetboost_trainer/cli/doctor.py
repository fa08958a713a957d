"""`python -m resnetboost_trainer doctor`: examines this machine; with a device, or when asked, computes on it too."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import resnetboost_trainer
from resnetboost_api import findings
from resnetboost_api.findings import Finding, Report
from resnetboost_trainer.cli import options
from resnetboost_trainer.doctor import ascend, bug_report, mindspore, nvidia, registry
from resnetboost_trainer.doctor.check import Subject, counted
from resnetboost_trainer.doctor.host import Host
from resnetboost_trainer.selfcheck import gang, verdict
from resnetboost_trainer.selfcheck.gang import Ended

FILE = "resnetboost-doctor.json"
MOST_RANKS = 8
SECONDS = {"CPU": 300.0, "GPU": 900.0, "Ascend": 900.0}  # the first start of a device compiles for minutes
INTERRUPTED = 130
# Names of the self-checks in the report.
DEVICE, ALONE = "device", "one rank alone"


def main(words: Sequence[str]) -> int:
    """Examine, print the findings, write the file; return the exit code: 1 if there is a problem."""
    arguments = parser().parse_args([word for word in words if word != "--"])
    return options.main("doctor", lambda: _doctor(arguments))


def _doctor(arguments: argparse.Namespace) -> int:
    subject = Subject(Host(), arguments.runs)
    kinds = mindspore.kinds(subject.host)
    try:
        found = list(registry.examine(subject))
        checks = _checks(arguments, subject.host, _usable(kinds, found))
    except KeyboardInterrupt:
        return INTERRUPTED
    if DEVICE in checks:
        found += verdict.judge(checks[DEVICE], checks.get(_reference(DEVICE)))
    if ALONE in checks:
        found += _alone(checks)
    _print(found, arguments.output)
    if checks or kinds or arguments.out is not None:
        path = arguments.out or Path(FILE)
        bug_report.write(path, found, checks, subject.host)
        print(f"resnetboost doctor: {path} can be attached to a bug report; read it before", file=sys.stderr)
    return findings.exit_code(found)


def _usable(kinds: Sequence[str], found: Sequence[Finding]) -> list[str]:
    """The kinds of devices that MindSpore computes on: there is a finding about each, in their order."""
    about = [one for one in found if one.check == mindspore.DEVICE]
    return [kind for kind, one in zip(kinds, about, strict=False) if one.level == "ok"]


def _print(found: Sequence[Finding], form: str) -> None:
    if form == "json":
        report = Report(resnetboost_trainer.__version__, tuple(found))
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(*findings.lines(found), sep="\n")


def _checks(arguments: argparse.Namespace, host: Host, usable: Sequence[str]) -> dict[str, Ended]:
    """The self-checks: the device's gang, the same on the CPU, and one rank alone if the device's gang failed."""
    wanted = arguments.self_check if arguments.self_check is not None else bool(usable)
    if not wanted:
        return {}
    device = arguments.device or next(iter(usable), "CPU")
    here = {"Ascend": len(ascend.devices(host)), "GPU": len(nvidia.devices(host))}.get(device, 2)
    count = arguments.ranks or min(max(here, 1), MOST_RANKS)
    limit = arguments.seconds or SECONDS[device]
    checks = _pair(DEVICE, device, count, limit)
    if checks[DEVICE].trouble and count > 1:
        checks |= _pair(ALONE, device, 1, limit)
    return checks


def _pair(name: str, device: str, count: int, limit: float) -> dict[str, Ended]:
    """A gang on the device and, if it began, the same one on the CPU."""
    print(f"resnetboost doctor: {counted(count, 'rank')} on {device}, then on the CPU", file=sys.stderr)
    found = {name: _run(device, count, False, limit)}
    if found[name].results is not None:
        found[_reference(name)] = _run("CPU", count, True, limit)
    return found


def _reference(name: str) -> str:
    return f"{name}, reference"


def _run(device: str, count: int, plain: bool, limit: float) -> Ended:
    with tempfile.TemporaryDirectory(prefix="resnetboost-doctor-", ignore_cleanup_errors=True) as folder:
        return gang.run(Path(folder), device, count, plain, limit)


def _alone(checks: dict[str, Ended]) -> Iterator[Finding]:
    """Whether the device computes where its gang does not: this tells its arithmetic from its communication."""
    for one in verdict.judge(checks[ALONE], checks.get(_reference(ALONE))):
        yield msgspec.structs.replace(one, message=f"one rank alone: {one.message}")


def parser() -> argparse.ArgumentParser:
    """The command's options; those of `resnetboost doctor` are the same."""
    made = argparse.ArgumentParser("python -m resnetboost_trainer doctor", description=__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    check = made.add_argument("--self-check", action=argparse.BooleanOptionalAction, default=None)
    check.help = "compute an all-reduce and some steps of each algorithm (default: where a device is)"
    made.add_argument("--device", choices=options.DEVICES, help="device to compute on (default: the one here)")
    made.add_argument(
        "--ranks",
        type=int,
        choices=range(1, 17),
        metavar="N",
        help="ranks of the self-checks (default: one per device, 2 on CPUs)",
    )
    made.add_argument("--seconds", type=float, help="time limit of each self-check (default: 300, on devices 900)")
    made.add_argument("--out", type=Path, help=f"file for a bug report (default: {FILE}, after self-checks)")
    made.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the findings")
    return made
