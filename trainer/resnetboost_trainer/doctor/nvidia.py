"""NVIDIA: GPUs, driver, and the CUDA 11 libraries that MindSpore's GPU part loads; NCCL is in MindSpore's package."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject, counted
from resnetboost_trainer.doctor.host import Host

# What libmindspore_gpu.so.11.6 of MindSpore 2.10.0 needs beside the driver.
LIBRARIES = (
    "libcudart.so.11.0",
    "libcublas.so.11",
    "libcudnn.so.8",
    "libcufft.so.10",
    "libcurand.so.10",
    "libcusolver.so.11",
    "libcusparse.so.11",
    "libnvrtc.so.11.2",
)
# The newest architecture that MindSpore's kernels are compiled for; the driver translates them for newer ones.
COMPILED_FOR = 8.6
_QUERY = ("index", "name", "driver_version", "memory.total", "compute_cap", "ecc.errors.uncorrected.volatile.total")
_LOAD = (
    "import ctypes, sys\n"
    "for name in sys.argv[1:]:\n"
    "    try: ctypes.CDLL(name)\n"
    "    except OSError: print('missing', name)\n"
    "print('looked')\n"
)


def devices(host: Host) -> list[str]:
    """The GPUs that the kernel shows this process."""
    return [name for name in host.find("/dev/nvidia*") if re.fullmatch(r"/dev/nvidia\d+", name)]


def check(subject: Subject) -> Iterator[Finding]:
    """Examine what is there; nothing where neither a GPU nor its driver is."""
    host = subject.host
    found, driver = devices(host), host.read("/proc/driver/nvidia/version")
    if not found and not driver:
        return
    if not found:
        remedy = "in a container, ask for GPUs (nvidia.com/gpu, or docker run --gpus all)"
        yield findings.warning("nvidia", "the driver is loaded, but there is no /dev/nvidia*", remedy)
        return
    yield from _cards(host, len(found))
    yield _libraries(host)
    yield _plugin()


def _cards(host: Host, count: int) -> Iterator[Finding]:
    program = host.which("nvidia-smi")
    if program is None:
        remedy = "set NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container"
        yield findings.warning("nvidia", f"{counted(count, 'GPU')}, but no nvidia-smi to ask about them", remedy)
        return
    answer = host.run([program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY)]
    if answer.code is None:
        yield findings.problem("nvidia", "nvidia-smi hangs", "look at dmesg for Xid: the driver does not answer")
    elif answer.code or not rows:
        message = f"nvidia-smi ended with {answer.code}: {answer.last_line}"
        yield findings.problem("nvidia", message, "look at dmesg for Xid and at the driver's installation")
    else:
        yield _described(rows)


def _described(rows: list[list[str]]) -> Finding:
    _, name, driver, memory, capability, _ = rows[0]
    found = f"{counted(len(rows), 'GPU')} ({name}, {memory} MiB, compute capability {capability}), driver {driver}"
    bad = [f"{row[0]} ({row[5]})" for row in rows if row[5].isdecimal() and int(row[5])]
    if bad:
        remedy = "drain the node and reset the GPU"
        return findings.problem("nvidia", f"uncorrected memory errors of GPU {', '.join(bad)}; {found}", remedy)
    if _number(capability) > COMPILED_FOR:
        remedy = "expect minutes for the first start; set CUDA_CACHE_MAXSIZE=4294967296 to keep what is compiled"
        return findings.warning("nvidia", f"{found}: MindSpore's kernels are compiled up to {COMPILED_FOR}", remedy)
    return findings.ok("nvidia", found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _libraries(host: Host) -> Finding:
    answer = host.run([sys.executable, "-c", _LOAD, *LIBRARIES], 30.0)
    missing = re.findall(r"^missing (\S+)$", answer.text, re.MULTILINE)
    remedy = "use the image trainer-gpu, or pip install images/locks/cuda.lock and set LD_LIBRARY_PATH"
    if "looked" not in answer.text:
        return findings.problem("cuda", f"loading the CUDA libraries failed: {answer.last_line}", remedy)
    if missing:
        return findings.problem("cuda", f"CUDA 11 and cuDNN 8: not found: {', '.join(missing)}", remedy)
    return findings.ok("cuda", f"all {len(LIBRARIES)} libraries of CUDA 11 and cuDNN 8 load")


def _plugin() -> Finding:
    """MindSpore's own part for GPUs, and its NCCL, which the images for other devices leave out."""
    found = importlib.util.find_spec("mindspore")
    folder = Path(found.origin).parent / "lib" / "plugin" if found is not None and found.origin else None
    if folder is not None and list(folder.glob("gpu11*/libnccl.so.2")):
        return findings.ok("nccl", "MindSpore's GPU part and its NCCL are installed")
    return findings.problem("nccl", "this MindSpore has no GPU part and no NCCL", "use the image trainer-gpu")
