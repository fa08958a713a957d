"""Local pods behave as kubelet's do: real processes, started from manifests like the operator's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_operator.local import machine
from resnetboost_operator.local.local_cluster import LocalCluster

Manifest = dict[str, Any]

SAY_ALL = """
import json, os
wanted = ("RESNETBOOST_", "OMP_")
told = {name: value for name, value in os.environ.items() if name.startswith(wanted)}
told["cores"] = sorted(os.sched_getaffinity(0))
told["config"] = open(os.environ["RESNETBOOST_CONFIG"]).read()
print(json.dumps(told))
"""
SAY_LAST_WORDS = """
import os, sys
open(os.environ["RESNETBOOST_TERMINATION_LOG"], "w").write("the last words")
sys.exit(11)
"""
SLEEP = "import time; print('up', flush=True); time.sleep(60)"
LEAVE_ON_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(16))
print("up", flush=True)
time.sleep(60)
"""
IGNORE_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("up", child.pid, flush=True)
time.sleep(60)
"""


def pod(code: str, index: int = 0, **container: Any) -> Manifest:
    environment = {
        names.ENV_CONFIG: f"{names.PATH_CONFIG}/config.yaml",
        names.ENV_TERMINATION_LOG: names.PATH_TERMINATION_LOG,
        names.ENV_CHECKPOINTS: names.PATH_CHECKPOINTS,
        names.ENV_COORDINATOR: "gang.default.svc:8118",
        names.ENV_WORLD_SIZE: "2",
    }
    return {
        "kind": "Pod",
        "metadata": {"name": f"gang-{index}", "namespace": "default", "labels": {names.LABEL_INDEX: str(index)}},
        "spec": {
            "containers": [
                {
                    "name": names.CONTAINER,
                    "command": ["python", "-c", code],
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                    "terminationMessagePath": names.PATH_TERMINATION_LOG,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "config", "mountPath": names.PATH_CONFIG},
                        {"name": "checkpoints", "mountPath": names.PATH_CHECKPOINTS},
                    ],
                    **container,
                }
            ],
            "volumes": [{"name": "config", "configMap": {"name": "gang"}}, {"name": "checkpoints", "emptyDir": {}}],
        },
    }


CONFIG_MAP: Manifest = {
    "kind": "ConfigMap",
    "metadata": {"name": "gang", "namespace": "default"},
    "data": {"config.yaml": "seed: 0\n"},
}
SERVICE: Manifest = {
    "kind": "Service",
    "metadata": {"name": "gang", "namespace": "default"},
    "spec": {"selector": {names.LABEL_INDEX: "0"}},
}


class World:
    """A cluster in a folder, with helpers that wait for a state."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.changed = asyncio.Event()
        self.cluster = LocalCluster(folder, self.changed.set, **settings)

    def create(self, *pods: Manifest) -> None:
        self.cluster.create([CONFIG_MAP, SERVICE, *pods])

    def log(self, index: int = 0) -> str:
        return (self.folder / "logs" / f"gang-{index}.log").read_text()

    async def until(self, condition: Callable[[tuple[Manifest, ...]], Any], seconds: float = 20) -> Any:
        async with asyncio.timeout(seconds):
            while True:
                self.changed.clear()
                if found := condition(self.cluster.observe()):
                    return found
                await self.changed.wait()

    async def ended(self) -> Manifest:
        """The terminated state of the first pod."""
        found: Manifest = await self.until(lambda pods: pods and terminated(pods[0]))
        return found

    async def up(self, count: int = 1) -> None:
        """Wait until the containers have reported that they run."""
        async with asyncio.timeout(20):
            while not all("up" in self.log(index) for index in range(count)):
                await asyncio.sleep(0.02)


def terminated(pod: Manifest) -> Any:
    return pod["status"]["containerStatuses"][0]["state"].get("terminated")


def play(folder: Path, scene: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def performance() -> None:
        world = World(folder, **settings)
        try:
            await scene(world)
        finally:
            await world.cluster.close()

    asyncio.run(performance())


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def assert_dies(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its pod"
        time.sleep(0.02)


def test_a_pod_that_ends_well_has_succeeded(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod("print('hello')"))
        assert (await world.ended())["exitCode"] == 0
        (seen,) = world.cluster.observe()
        assert seen["status"]["phase"] == "Succeeded"
        assert terminated(seen)["reason"] == "Completed"
        assert world.log() == "hello\n"

    play(tmp_path, scene)


def test_a_running_pod_is_ready_and_has_an_address_a_node_and_a_uid(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(SLEEP))
        (seen,) = world.cluster.observe()
        assert seen["status"]["phase"] == "Running"
        assert seen["status"]["podIP"].startswith("127.")
        assert seen["status"]["containerStatuses"][0]["ready"]
        assert seen["spec"]["nodeName"]
        assert seen["metadata"]["uid"]
        assert seen["metadata"]["creationTimestamp"].endswith("Z")

    play(tmp_path, scene)


def test_exit_code_and_termination_message_are_kept(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(SAY_LAST_WORDS))
        ended = await world.ended()
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (11, "Error", "the last words")

    play(tmp_path, scene)


def test_a_crash_without_a_termination_message_keeps_the_end_of_its_log(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod("print('x' * 5000); raise ValueError('no such thing')"))
        ended = await world.ended()
        assert ended["exitCode"] == 1
        assert ended["message"].endswith("ValueError: no such thing\n")
        assert len(ended["message"]) <= 2048

    play(tmp_path, scene)


def test_a_long_termination_message_is_cut_as_kubelet_does(tmp_path: Path) -> None:
    code = "import os; open(os.environ['RESNETBOOST_TERMINATION_LOG'], 'w').write('y' * 9999); raise SystemExit(1)"

    async def scene(world: World) -> None:
        world.create(pod(code))
        assert (await world.ended())["message"] == "y" * 4096

    play(tmp_path, scene)


def test_a_killed_pod_ends_with_137(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod("import os; os.kill(os.getpid(), 9)"))
        ended = await world.ended()
        assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")

    play(tmp_path, scene)


def test_a_command_that_does_not_exist_fails_and_says_so(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod("", command=["no-such-command"]))
        ended = await world.ended()
        assert ended["exitCode"] == 127
        assert ended["message"] == "no-such-command: No such file or directory\n"

    play(tmp_path, scene)


def test_a_deleted_pod_may_leave_by_itself_shows_its_end_once_and_is_gone(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(LEAVE_ON_SIGTERM))
        await world.up()
        (seen,) = world.cluster.observe()
        world.cluster.delete("gang-0", seen["metadata"]["uid"], 30)
        (seen,) = world.cluster.observe()
        assert seen["metadata"]["deletionTimestamp"]
        assert (await world.ended())["exitCode"] == 16
        assert world.cluster.observe() == ()

    play(tmp_path, scene)


def test_a_deleted_pod_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(IGNORE_SIGTERM))
        await world.up()
        (seen,) = world.cluster.observe()
        world.cluster.delete("gang-0", seen["metadata"]["uid"], 0.3)
        began = time.monotonic()
        assert (await world.ended())["exitCode"] == 137
        assert time.monotonic() - began > 0.2

    play(tmp_path, scene)


def test_deleting_another_pod_of_the_same_name_does_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(SLEEP))
        world.cluster.delete("gang-0", "the uid of an earlier one", 0)
        (seen,) = world.cluster.observe()
        assert "deletionTimestamp" not in seen["metadata"]

    play(tmp_path, scene)


def test_creating_a_pod_that_is_there_does_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(SLEEP))
        before = world.cluster.observe()
        world.create(pod(SLEEP))
        assert world.cluster.observe() == before

    play(tmp_path, scene)


def test_a_pod_sees_its_own_environment_files_cores_and_peers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RESNETBOOST_STRAY", "of the shell")
    cores = machine.usable_cores()[:1] * 2

    async def scene(world: World) -> None:
        world.create(pod(SAY_ALL, 0), pod(SAY_ALL, 1))
        await world.until(lambda pods: all(map(terminated, pods)))
        addresses = [seen["status"]["podIP"] for seen in world.cluster.observe()]
        told = [json.loads(world.log(index)) for index in (0, 1)]
        assert addresses[0] != addresses[1]
        assert [words["RESNETBOOST_COORDINATOR"] for words in told] == [f"{addresses[0]}:8118"] * 2
        assert [words["RESNETBOOST_BIND_ADDRESS"] for words in told] == addresses
        assert [words["RESNETBOOST_CHECKPOINTS"] for words in told] == [str(tmp_path / "checkpoints")] * 2
        assert [words["OMP_NUM_THREADS"] for words in told] == ["1", "1"]
        assert [words["cores"] for words in told] == [[cores[0]]] * 2
        assert [words["config"] for words in told] == ["seed: 0\n"] * 2
        assert "RESNETBOOST_STRAY" not in told[0]

    play(tmp_path, scene, cores=cores)


def test_every_pod_may_listen_on_the_same_port(tmp_path: Path) -> None:
    code = """
import os, socket, time
server = socket.socket()
server.bind((os.environ["RESNETBOOST_BIND_ADDRESS"], 9400))
print("up", flush=True)
time.sleep(60)
"""

    async def scene(world: World) -> None:
        world.create(pod(code, 0), pod(code, 1))
        await world.up(2)

    play(tmp_path, scene)


def test_two_clusters_at_once_share_no_address(tmp_path: Path) -> None:
    async def scene() -> None:
        worlds = [World(tmp_path / name) for name in ("a", "b")]
        for world in worlds:
            world.create(pod(SLEEP))
        addresses = [world.cluster.observe()[0]["status"]["podIP"] for world in worlds]
        assert addresses[0].split(".")[1] != addresses[1].split(".")[1]
        for world in worlds:
            await world.cluster.close()

    asyncio.run(scene())


def test_child_processes_end_with_their_container(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod(WITH_A_CHILD))
        await world.up()
        child = int(world.log().split()[1])
        (seen,) = world.cluster.observe()
        world.cluster.delete("gang-0", seen["metadata"]["uid"], 30)  # SIGTERM reaches only the first process
        await world.ended()
        assert_dies(child)

    play(tmp_path, scene)


def test_closing_the_cluster_leaves_nothing_running(tmp_path: Path) -> None:
    pids: list[int] = []

    async def scene(world: World) -> None:
        world.create(pod(f"import os; print(os.getpid(), flush=True)\n{IGNORE_SIGTERM}"))
        await world.up()
        pids.append(int(world.log().split()[0]))

    play(tmp_path, scene)
    assert_dies(pids[0])


RUNNER = """
import asyncio, json, sys
from pathlib import Path
from resnetboost_operator.local.local_cluster import LocalCluster

async def main():
    cluster = LocalCluster(Path(sys.argv[1]), lambda: None)
    cluster.create(json.loads(sys.argv[2]))
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_no_pod_outlives_a_runner_that_is_killed(tmp_path: Path) -> None:
    manifests = [CONFIG_MAP, *(pod(f"import os; print(os.getpid(), flush=True)\n{IGNORE_SIGTERM}", i) for i in (0, 1))]
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path), json.dumps(manifests)])
    logs = [tmp_path / "logs" / f"gang-{index}.log" for index in (0, 1)]
    deadline = time.monotonic() + 20
    while not all(log.exists() and "up" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    for log in logs:
        assert_dies(int(log.read_text().split()[0]))


def test_a_terminals_ctrl_c_does_not_reach_the_pods(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.create(pod("import os; print(f'up {os.getsid(0)}', flush=True); import time; time.sleep(60)"))
        await world.up()
        assert int(world.log().split()[1]) != os.getsid(0)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"name": "data", "nfs": {"server": "s", "path": "/"}}, "data is of kind nfs"),
        ({"name": "data", "configMap": {"name": "other"}}, "data needs the config map other"),
    ],
    ids=["nfs", "a config map of the cluster"],
)
def test_a_volume_this_machine_lacks_is_refused_in_one_sentence(tmp_path: Path, volume: Manifest, words: str) -> None:
    from resnetboost_operator.errors import UserError

    async def scene(world: World) -> None:
        manifest = pod(SLEEP)
        manifest["spec"]["volumes"].append(volume)
        manifest["spec"]["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
        with pytest.raises(UserError, match=words):
            world.create(manifest)

    play(tmp_path, scene)
