"""The control-plane test bed: it works, survives an API server restart, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.cluster import ClusterError, ControlPlane

TESTS = Path(__file__).parents[1]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: kwok-0
  containers: [{name: main, image: none}]
"""


@pytest.fixture(scope="module")
def own_plane(programs: None) -> Iterator[ControlPlane]:
    """A control plane of its own, to restart and to add nodes to."""
    with ControlPlane(with_audit=True) as plane:
        yield plane


def wait(plane: ControlPlane, *condition: str) -> None:
    plane.kubectl("wait", "--timeout=30s", *condition)


def test_jobs_can_be_asked_for(control_plane: ControlPlane, namespace: str) -> None:
    assert control_plane.kubectl("get", "rbj", "--output=name", f"--namespace={namespace}") == ""


def test_a_refusal_has_kubectls_message(control_plane: ControlPlane) -> None:
    with pytest.raises(ClusterError, match='pods "nobody" not found'):
        control_plane.kubectl("get", "pod", "nobody")


def test_requests_of_a_service_account_are_logged(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.token_kubeconfig(namespace, "default")
    with pytest.raises(ClusterError, match="forbidden"):
        control_plane.kubectl(f"--kubeconfig={kubeconfig}", "get", "pods")
    account = f"system:serviceaccount:{namespace}:default"
    forbidden = ("list", "pods", namespace, 403)
    control_plane.processes.wait_until(
        lambda: forbidden in [(r.verb, r.resource, r.namespace, r.code) for r in control_plane.requests(account)],
        "the request's entry in the log",
    )


def test_the_scheduler_binds_pods_to_a_node_that_has_what_they_ask_for(own_plane: ControlPlane) -> None:
    own_plane.add_node("plain")
    own_plane.add_node("with-devices", {"example.com/device": "2"})
    own_plane.kubectl("run", "asks", "--image=none", "--overrides", asking_for("example.com/device", 2))
    wait(own_plane, "pod/asks", "--for=condition=PodScheduled")
    assert own_plane.kubectl("get", "pod", "asks", "--output=jsonpath={.spec.nodeName}") == "with-devices"


def asking_for(resource: str, count: int) -> str:
    limits = f'{{"limits": {{"{resource}": "{count}"}}}}'
    return f'{{"spec": {{"containers": [{{"name": "asks", "image": "none", "resources": {limits}}}]}}}}'


def test_pods_on_kwok_nodes_run_fail_on_request_and_go(own_plane: ControlPlane) -> None:
    own_plane.add_kwok_nodes(1)
    own_plane.kubectl("create", "--filename=-", input=POD.replace("NAME", "fails"))
    wait(own_plane, "pod/fails", "--for=condition=Ready")
    own_plane.kubectl("annotate", "pod/fails", "exit-code=3")
    wait(own_plane, "pod/fails", "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}=3")
    assert own_plane.kubectl("get", "pod/fails", "--output=jsonpath={.status.phase}") == "Failed"
    own_plane.kubectl("delete", "pod/fails", "--timeout=30s")


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_objects_survive_a_restart_of_the_api_server(kill: bool, own_plane: ControlPlane) -> None:
    name = f"configmap/kept-{kill}".lower()
    own_plane.kubectl("create", *name.split("/"))
    own_plane.restart_apiserver(kill=kill)
    assert name in own_plane.kubectl("get", "configmaps", "--output=name")


@pytest.mark.usefixtures("programs")
def test_nothing_is_left_behind() -> None:
    with ControlPlane() as plane:
        assert len(processes_of(plane.folder)) > 4
    assert processes_of(plane.folder) == []
    assert not plane.folder.exists()


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGINT", "SIGKILL"], ["SIGTERM"], ["SIGKILL"]], ids="-".join)
@pytest.mark.usefixtures("programs")
def test_nothing_is_left_behind_by_an_owner_that_was_stopped(signals: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "beds.cluster", "--nodes=0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        assert any("Ctrl-C" in line for line in owner.stdout)
        (folder,) = tmp_path.iterdir()
        for name in signals:
            owner.send_signal(signal.Signals[name])
    deadline = time.monotonic() + 10
    while processes_of(folder) or folder.exists():
        assert time.monotonic() < deadline, processes_of(folder)
        time.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder or name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(folder) in command or str(folder) in os.readlink(process / "cwd"):
                found.append(command)
    return found
