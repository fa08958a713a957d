"""Runs `resnetboost run` on a job in its own folder: start, watch and inspect it."""

import hashlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from resnetboost_operator.runs.runfolder import RunFolder
from support import forkserver, sharedgraphs

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))


_POLL_SECONDS = 0.02


class Run:
    """`resnetboost run` of a job; `forked` ranks start from a process that has imported MindSpore.

    They reuse the graphs that an earlier run of the same job compiled.
    """

    def __init__(self, folder: Path, job: dict[str, Any], forked: bool = True) -> None:
        self._forked = forked
        self.out = folder / "run"
        self.job = folder / "job.yaml"
        self.job.write_text(yaml.safe_dump(job))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "Run":
        command = [RESNETBOOST, "run", str(self.job), "--out", str(self.out)]
        environment = forkserver.environment(os.environ) if self._forked else None
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for stage, settings in self._stages(self.process).items():
            sharedgraphs.give(stage, settings)
        return self

    def _stages(self, process: "subprocess.Popen[str]") -> dict[Path, Any]:
        """Folder and settings of each stage, once the run has chosen its uid; none if it ends without one."""
        folder = RunFolder(self.out)
        while not folder.job_file.exists():
            if process.poll() is not None:
                return {}
            time.sleep(_POLL_SECONDS)
        job = folder.read_job()
        root, spec = folder.checkpoints / job["metadata"]["uid"], job["spec"]
        common = {name: spec[name] for name in ("device", "model", "dataset")}
        return {root / stage["name"]: {**common, "stage": stage} for stage in spec["stages"]}

    def finish(self) -> tuple[int, str]:
        assert self.process is not None
        output, _ = self.process.communicate(timeout=400)
        for stage in self._stages(self.process):
            sharedgraphs.collect(stage)
        return self.process.returncode, output

    def status(self) -> dict[str, Any]:
        path = self.out / "status.yaml"
        return yaml.safe_load(path.read_text()) if path.exists() else {}

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status file satisfies the condition."""
        deadline = time.monotonic() + 240
        while not condition(status := self.status()):
            assert self.process is not None
            assert self.process.poll() is None, f"the run ended early: {self.process.communicate()[0]}"
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        return status

    def rank(self, rank: int) -> int:
        """Process id of that rank: not of its launcher, nor of the template that this forks it from."""
        found = {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and self._is_rank(int(pid), rank)}
        forked = {pid for pid in found if _parent(pid) in found}
        (process,) = forked or found
        return process

    def ask(self, rank: int, path: str) -> str:
        """That rank's response to an HTTP request."""
        variables = Path(f"/proc/{self.rank(rank)}/environ").read_bytes().split(b"\0")
        prefix = b"RESNETBOOST_BIND_ADDRESS="
        address = next(entry for entry in variables if entry.startswith(prefix)).removeprefix(prefix).decode()
        with urllib.request.urlopen(f"http://{address}:9400{path}", timeout=30) as response:
            body: bytes = response.read()
        return body.decode()

    def _is_rank(self, pid: int, rank: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        if any(entry.startswith(b"RESNETBOOST_LAUNCHER_TOKEN=") for entry in variables):
            return False
        ours = any(entry.startswith(b"RESNETBOOST_CONFIG=" + str(self.out).encode()) for entry in variables)
        return ours and f"RESNETBOOST_RANK={rank}".encode() in variables and b"resnetboost_trainer" in command

    def weights(self) -> dict[str, str]:
        """Hashes of all contents of the final checkpoint."""
        final = max(self.out.glob("checkpoints/*/base/attempt-*/step-*"), key=lambda path: path.name)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in final.glob("*.safetensors")}


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


def job(*stages: dict[str, Any], count: int = 2, **spec: Any) -> dict[str, Any]:
    """A job of resnet20 on digits, with the given stages and other fields of the spec."""
    plain = {
        "device": {"type": "CPU", "count": count},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": list(stages),
        "failurePolicy": {"backoffSeconds": 0},
    }
    head = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "metadata": {"name": "digits"}}
    return {**head, "spec": plain | spec}


def checkpointed(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: (status.get("progress") or {}).get("checkpointStep", 0) >= step


def completed(folder: Path, job: dict[str, Any]) -> Run:
    """Run a job to completion without disturbance."""
    run = Run(folder, job).start()
    code, output = run.finish()
    assert code == 0, output
    return run
