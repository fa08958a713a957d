"""Ascend: NPUs, driver, CANN, health by npu-smi, and the addresses of their network cards. Only looked at.

Written from Huawei's documents; it never ran on such a machine.
"""

import re
from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject, counted
from resnetboost_trainer.doctor.host import Host

DRIVER = "/usr/local/Ascend/driver/version.info"
TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
HCCN = "/etc/hccn.conf"
# Versions of CANN that MindSpore 2.10.0 names (run_check/_check_version.py).
CANN_VERSIONS = ("8.2", "8.3", "8.5", "9.0", "9.1")
_LINK_SECONDS = 5.0
_MOST_LINKS = 16
_ROW = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|", re.MULTILINE)


def devices(host: Host) -> list[str]:
    """The NPUs that the kernel shows this process."""
    return [name for name in host.find("/dev/davinci*") if re.fullmatch(r"/dev/davinci\d+", name)]


def check(subject: Subject) -> Iterator[Finding]:
    """Examine what is there; nothing where neither an NPU nor its driver is."""
    host = subject.host
    found, driver = devices(host), _value(host.read(DRIVER), "Version")
    if not found and not driver:
        return
    if not found:
        remedy = "in a container, ask for NPUs (huawei.com/Ascend910) or mount /dev/davinci*; else load the driver"
        yield findings.warning("ascend", f"driver {driver}, but there is no /dev/davinci*", remedy)
    elif not driver:
        remedy = "mount /usr/local/Ascend/driver from the node (device.driverMounts)"
        yield findings.problem("ascend", f"{counted(len(found), 'NPU')}, but no driver at {DRIVER}", remedy)
    else:
        yield findings.ok("ascend", f"{counted(len(found), 'NPU')}, driver {driver}")
    yield _cann(host)
    if found:
        yield from _health(host)
        yield from _network(host, len(found))


def _cann(host: Host) -> Finding:
    home = host.variables.get("ASCEND_HOME_PATH") or TOOLKIT
    version = _value(host.read(f"{home}/compiler/version.info"), "Version")
    if not version:
        remedy = "source its set_env.sh, or use the image trainer-ascend on a base image with CANN"
        return findings.problem("cann", f"no CANN at {home}", remedy)
    if not version.startswith(tuple(f"{known}." for known in CANN_VERSIONS)) and version not in CANN_VERSIONS:
        remedy = f"MindSpore 2.10 names {', '.join(CANN_VERSIONS)}: install one of them"
        return findings.warning("cann", f"version {version}", remedy)
    return findings.ok("cann", f"version {version}")


def _health(host: Host) -> Iterator[Finding]:
    program = host.which("npu-smi")
    if program is None:
        yield findings.warning(
            "npu-smi", "there is no npu-smi, so nothing is known of health", "mount it from the node"
        )
        return
    answer = host.run([program, "info"])
    rows = _ROW.findall(answer.text)
    if answer.code is None:
        yield findings.problem("npu-smi", "npu-smi info hangs", "look at dmesg: the driver does not answer")
    elif answer.code or not rows:
        message = f"npu-smi info ended with {answer.code}: {answer.last_line}"
        yield findings.problem("npu-smi", message, "look at dmesg and at the driver's installation")
    elif bad := [f"{number} {health}" for number, _, health in rows if health != "OK"]:
        remedy = "drain the node and look at npu-smi info -t health -i ID"
        yield findings.problem("npu-smi", f"health of NPU {', '.join(bad)}", remedy)
    else:
        yield findings.ok(
            "npu-smi", f"{counted(len(rows), 'chip')}, {', '.join(sorted({row[1] for row in rows}))}, all OK"
        )


def _network(host: Host, count: int) -> Iterator[Finding]:
    """The cards' addresses, which rank tables name, and their links. Addresses themselves are not repeated."""
    addresses = set(re.findall(r"^\s*address_(\d+)\s*=\s*\S+", host.read(HCCN), re.MULTILINE))
    if not addresses and count > 1:
        remedy = "configure the cards with hccn_tool, or mount the file from the node (device.driverMounts)"
        yield findings.warning("hccn", f"no address of a card in {HCCN}: gangs across nodes cannot meet", remedy)
    elif addresses:
        yield findings.ok("hccn", f"{HCCN} has {len(addresses)} of the cards' addresses")
    program = host.which("hccn_tool")
    if program is None or not addresses:
        return
    down: list[str] = []
    for number in sorted(addresses, key=int)[:_MOST_LINKS]:
        answer = host.run([program, "-i", number, "-link", "-g"], _LINK_SECONDS)
        if answer.code is None:
            yield findings.problem("hccn", "hccn_tool hangs", "look at dmesg: the driver does not answer")
            return
        if not re.search(r"link status:\s*UP", answer.text):
            down.append(number)
    if down:
        yield findings.problem("hccn", f"link of card {', '.join(down)} is not UP", "look at its cable and its switch")
    else:
        yield findings.ok("hccn", "all links are UP")


def _value(text: str, name: str) -> str:
    """The value of a line NAME=VALUE, '' without one."""
    found = re.search(rf"^\s*{name}\s*=\s*\[?\s*([^\s\]]+)", text, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""
