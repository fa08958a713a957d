"""The node test bed: pods reach each other and the API server, and nothing of it is left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beds.cluster.build import home
from beds.kubelet import images
from beds.kubelet.sandbox import cgroups, sweep
from beds.operator import Space
from beds.operator.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.long]

PATIENCE_SECONDS = 60.0  # a guard removes the folders, which hold all files of the images
TESTS = Path(__file__).parents[1]
FOLDERS = re.compile(r"files are in (\S+) and (\S+)$")
LOOK_UP = "import socket; print(socket.gethostbyname('kubernetes.default.svc'))"
WRITE = "import pathlib; pathlib.Path('/tmp/mine').write_text('x'); pathlib.Path('/var/tmp/no').write_text('x')"


def run_pod(space: Space, name: str, code: str, *options: str) -> str:
    """Output of Python code in a pod of the trainer's image."""
    plane = space.plane
    image = f"--image={images.TRAINER.tag}"
    command = ["--command", "--", "python", "-c", code]
    plane.kubectl("run", name, image, f"--namespace={space.namespace}", "--restart=Never", *options, *command)
    wait = ["wait", f"pod/{name}", f"--namespace={space.namespace}", "--timeout=60s"]
    plane.kubectl(*wait, "--for=jsonpath={.status.containerStatuses[0].state.terminated}")
    return plane.kubectl("logs", name, f"--namespace={space.namespace}")


def test_pods_resolve_services(space: Space) -> None:
    assert run_pod(space, "asks", LOOK_UP).strip() == "10.96.0.1"


def test_the_trainers_image_needs_no_writable_root_and_no_root_user(space: Space) -> None:
    container = (
        '{"name": "reads", "securityContext": {"readOnlyRootFilesystem": true, "runAsNonRoot": true},'
        ' "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}]}'
    )
    overrides = f'{{"spec": {{"containers": [{container}], "volumes": [{{"name": "scratch", "emptyDir": {{}}}}]}}}}'
    code = f"import mindspore, os; print(os.getuid(), mindspore.Tensor([1]) + 1); {WRITE}"
    said = run_pod(space, "reads", code, f"--overrides={overrides}", "--override-type=strategic")
    assert "1000 [2]\n" in said
    assert "Read-only file system: '/var/tmp/no'" in said


@pytest.mark.usefixtures("bed")
@pytest.mark.parametrize("with_guard", [False, True], ids=["the-owner", "the-owner-and-its-guard"])
def test_nothing_stays_of_a_node_after_a_kill_of(with_guard: bool) -> None:
    command = [sys.executable, "-m", "beds.kubelet"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        told = next(found for line in owner.stdout if (found := FOLDERS.search(line)))
        folders = [Path(folder) for folder in told.groups()]
        if with_guard:
            for child in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split():
                if "guard.py" in command_line(child):
                    os.kill(int(child), signal.SIGKILL)
        owner.send_signal(signal.SIGKILL)
    if with_guard:
        sweep(home() / "beds")
    paths = [*folders, *cgroups(folders[0].name)]
    eventually(lambda: left_of(paths), lambda left: not left, "nothing is left", PATIENCE_SECONDS)


def left_of(paths: list[Path]) -> list[str]:
    """Remaining folders, and command lines of processes that name one or work in it."""
    everybody = [command_line(process.name) for process in Path("/proc").glob("[0-9]*")]
    names = [path.name for path in paths[:2]]
    return [str(path) for path in paths if path.exists()] + [
        line for line in everybody if any(name in line for name in names)
    ]


def command_line(process: str) -> str:
    try:
        folder = os.readlink(f"/proc/{process}/cwd")
        return Path("/proc", process, "cmdline").read_text(errors="replace") + f" in {folder}"
    except OSError:  # it has ended meanwhile
        return ""
