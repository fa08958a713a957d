"""MindSpore: its version, whether it can be imported, and whether it can use the devices that are here."""

import re
from collections.abc import Iterator
from importlib import metadata

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor import ascend, nvidia
from resnetboost_trainer.doctor.check import Subject
from resnetboost_trainer.doctor.host import Host, Output

DEVICE = "device"  # the check that says whether MindSpore computes on a kind of them
IMPORT_SECONDS = 120.0
DEVICE_SECONDS = 180.0  # Ascend initialises and compiles an operator
_IMPORT = "import mindspore, numpy; print('imported', mindspore.__version__, numpy.__version__)"
_USE = (
    "import sys, mindspore\n"
    "mindspore.set_device('{kind}')\n"
    "total = mindspore.Tensor([1.0, 2.0], mindspore.float32) + 1\n"
    "print('computed', total.asnumpy().tolist() == [2.0, 3.0])\n"
)
_QUIET = {"GLOG_v": "3"}
_IMAGES = {"GPU": "trainer-gpu", "Ascend": "trainer-ascend"}


def check(subject: Subject) -> Iterator[Finding]:
    """Import it in a process of its own, and compute a sum on each kind of device."""
    answer = subject.host.python(_IMPORT, IMPORT_SECONDS, **_QUIET)
    found = re.search(r"^imported (\S+) (\S+)$", answer.text, re.MULTILINE)
    if found is None:
        remedy = "use the .venv of `make setup`, or the trainer's image"
        yield findings.problem("mindspore", f"it cannot be imported: {_reason(answer, IMPORT_SECONDS)}", remedy)
        return
    version, numpy = found.groups()
    wanted = _wanted()
    if wanted and version != wanted:
        remedy = f"pip install mindspore=={wanted}"
        yield findings.warning("mindspore", f"version {version}; the trainer is tested with {wanted}", remedy)
    else:
        yield findings.ok("mindspore", f"version {version} with NumPy {numpy}")
    for kind in kinds(subject.host):
        yield _usable(subject.host, kind)


def kinds(host: Host) -> list[str]:
    """The kinds of devices that the kernel shows here."""
    return [kind for kind, found in (("Ascend", ascend.devices(host)), ("GPU", nvidia.devices(host))) if found]


def _usable(host: Host, kind: str) -> Finding:
    answer = host.python(_USE.format(kind=kind), DEVICE_SECONDS, **_QUIET)
    if "computed True" in answer.text:
        return findings.ok(DEVICE, f"MindSpore computes on {kind}")
    if "computed False" in answer.text:
        return findings.problem(DEVICE, f"MindSpore computes 1 + 1 wrongly on {kind}", "replace or reset the device")
    remedy = f"use the image {_IMAGES[kind]}, whose libraries fit (docs/images.md); this was never tried on hardware"
    return findings.problem(DEVICE, f"MindSpore cannot use {kind}: {_reason(answer, DEVICE_SECONDS)}", remedy)


def _wanted() -> str:
    """The version that our own package pins."""
    try:
        required = metadata.requires("resnetboost-trainer") or []
    except metadata.PackageNotFoundError:
        return ""
    return next((text.partition("==")[2] for text in required if text.startswith("mindspore==")), "")


def _reason(answer: Output, seconds: float) -> str:
    if answer.code is None:
        return f"it did not answer within {seconds:g} s"
    errors = re.findall(r"^\w*(?:Error|Exception): .*$", answer.text, re.MULTILINE)
    return errors[-1] if errors else answer.last_line or f"exit code {answer.code}"
