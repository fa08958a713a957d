"""`resnetboost status` against a real API server: read-only users, --watch, at a terminal and in a pipe."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.operator import Kubelet, Proxy, Space
from beds.operator.jobs import job
from beds.operator.namespace import JOB
from beds.operator.proxy import Call, Trouble
from beds.operator.wait import eventually
from resnetboost_api import names
from resnetboost_operator.kubeclient import lease
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.observed import pods
from support import clusterjobs
from support.pseudoterminal import Terminal

pytestmark = pytest.mark.slow

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
ACCOUNT = "looker"
PATIENCE_SECONDS = 60.0


class Looker:
    """A user who may only list and watch jobs in one namespace."""

    def __init__(self, space: Space) -> None:
        self._space = space
        plane, path = space.plane, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.namespace}"
        plane.client.send(
            "POST", f"/api/v1/namespaces/{space.namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}}
        )
        rule = {"apiGroups": [names.GROUP], "resources": [JOB], "verbs": ["list", "watch"]}
        plane.client.send("POST", f"{path}/roles", {"metadata": {"name": ACCOUNT}, "rules": [rule]})
        binding = {
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "namespace": space.namespace, "name": ACCOUNT}],
        }
        plane.client.send("POST", f"{path}/rolebindings", binding)
        self.kubeconfig = plane.token_kubeconfig(space.namespace, ACCOUNT)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self._space.namespace}:{ACCOUNT}"

    def through(self, proxy: Proxy) -> None:
        """Use the proxy from now on."""
        content = json.loads(self.kubeconfig.read_text())
        content["clusters"][0]["cluster"] = {"server": proxy.url}
        self.kubeconfig.write_text(json.dumps(content))

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.kubeconfig), "NO_PROXY": "*", "LANG": "C.UTF-8"}

    def asks(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RESNETBOOST, "status", *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def follows(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [RESNETBOOST, "status", "-w", *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(autouse=True)
def _in_a_folder_without_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`resnetboost status` also shows the local runs in ./runs, which this tree has after `make run`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def looker(space: Space) -> Looker:
    return Looker(space)


def tell(space: Space, status: dict[str, Any], name: str = "digits") -> None:
    """Write a job's status as the operator would."""
    found = space.get(JOB, name)
    path = f"/apis/{names.API_VERSION}/namespaces/{space.namespace}/{JOB}/{name}/status"
    space.plane.client.send("PUT", path, {**found, "status": status})


def first_line(followed: subprocess.Popen[str], pattern: str) -> str:
    """The first line that matches. Raises AssertionError if output ends before."""
    assert followed.stdout is not None
    for line in followed.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended without {pattern!r}")


def watching(proxy: Proxy) -> int:
    return sum(call.is_watch for call in proxy.calls)


def is_watch(call: Call) -> bool:
    return call.is_watch


def forget_operators(space: Space) -> None:
    """Delete leases of earlier tests, which were renewed a moment ago."""
    api = "/apis/coordination.k8s.io/v1"
    for found in json.loads(space.plane.client.get(f"{api}/leases?labelSelector={names.LABEL_LEASE}"))["items"]:
        place = found["metadata"]
        space.plane.client.send("DELETE", f"{api}/namespaces/{place['namespace']}/leases/{place['name']}")


def test_a_job_that_no_operator_looks_at_says_so(space: Space, looker: Looker) -> None:
    forget_operators(space)
    space.create(job())
    told = clusterjobs.running()
    for condition in told["conditions"]:
        condition["lastTransitionTime"] = pods.timestamp(time.time() - 300)
    told["progress"]["heartbeatTime"] = pods.timestamp(time.time() - 189)
    renewed = lease.timestamp(time.time() - 185)
    space.plane.client.send(
        "POST",
        f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases",
        lease.manifest("ops", space.namespace, Lease("gone_1", 15, acquire_time=renewed, renew_time=renewed)),
    )
    tell(space, told)
    assert "no news of it for 3:" in looker.asks().stdout
    looker.kubeconfig.write_text(space.plane.kubeconfig.read_text())
    assert "no operator has looked at this for 3:" in looker.asks("-n", space.namespace).stdout


def test_a_read_only_user_sees_everything_but_events(space: Space, looker: Looker) -> None:
    space.create(job())
    tell(space, clusterjobs.running())
    table, page = looker.asks(), looker.asks("digits")
    assert (table.returncode, table.stderr, page.returncode, page.stderr) == (0, "", 0, "")
    assert table.stdout.splitlines()[1].split()[:3] == ["digits", "Running", "base"]
    assert 'cannot list resource "events"' in " ".join(page.stdout.split())
    everywhere = looker.asks("-A")
    assert (everywhere.returncode, everywhere.stdout) == (10, "")
    assert "cannot list resource" in everywhere.stderr
    assert looker.asks("digit").stderr.endswith("did you mean digits?\n")
    refused = {request.verb for request in space.plane.requests(looker.user) if request.resource == JOB}
    assert refused <= {"list", "watch"}


def test_a_script_can_wait_for_the_end(space: Space, looker: Looker) -> None:
    space.create(job())
    tell(space, clusterjobs.running())
    followed = looker.follows("digits")
    first_line(followed, "Running .* step 264/440")
    tell(space, clusterjobs.complete())
    assert followed.wait(PATIENCE_SECONDS) == 0
    space.create(job("other"))
    tell(space, clusterjobs.failed(), "other")
    assert looker.follows("other").wait(PATIENCE_SECONDS) == 1


def test_a_broken_connection_and_forgotten_versions_lose_nothing(space: Space, looker: Looker, proxy: Proxy) -> None:
    space.create(job())
    tell(space, clusterjobs.waiting())
    looker.through(proxy)
    followed = looker.follows("digits")
    first_line(followed, "Starting")
    eventually(lambda: watching(proxy), lambda count: count == 1, "it watches")
    proxy.troubles += [Trouble(1, is_watch, code=410), Trouble(1, is_watch, code=503)]
    tell(space, clusterjobs.running())
    first_line(followed, "Running")
    proxy.cut_watches()
    eventually(lambda: watching(proxy), lambda count: count >= 4, "it watches again, three times")
    tell(space, clusterjobs.complete())
    assert followed.wait(PATIENCE_SECONDS) == 0


def test_an_api_server_that_is_started_anew_is_waited_for(space: Space, looker: Looker) -> None:
    space.create(job())
    tell(space, clusterjobs.running())
    followed = looker.follows()
    first_line(followed, "Running")
    space.plane.restart_apiserver(kill=True)
    tell(space, clusterjobs.complete())
    first_line(followed, "Complete")
    space.delete(JOB, "digits")
    first_line(followed, "digits  is deleted")
    followed.send_signal(signal.SIGINT)
    assert followed.wait(PATIENCE_SECONDS) == 130


def test_watching_an_idle_job_sends_no_requests(space: Space, looker: Looker, proxy: Proxy) -> None:
    heard = clusterjobs.PROGRESS | {"heartbeatTime": pods.timestamp(time.time())}
    space.create(job())
    tell(space, clusterjobs.running(progress=heard))
    looker.through(proxy)
    followed = looker.follows()
    first_line(followed, "Running")
    eventually(lambda: watching(proxy), lambda count: count == 1, "it watches")
    for step in range(265, 270):
        tell(space, clusterjobs.running(progress=heard | {"step": step}))
        first_line(followed, f"step {step}/440")
    assert [call.is_watch for call in proxy.calls] == [False, True]
    followed.kill()
    followed.wait()


@pytest.mark.usefixtures("operator_behind_proxy")
def test_a_job_is_followed_from_its_creation_to_its_end(space: Space, kubelet: Kubelet, looker: Looker) -> None:
    kubelet.tell(step=7, totalSteps=44, loss=1.5)
    space.create(job())
    followed = looker.follows("digits")
    first_line(followed, "Running .* step 7/44 .* loss 1.5")
    for index in (1, 0):
        kubelet.exit(f"digits-base-0-{index}", 0)
    assert followed.wait(PATIENCE_SECONDS) == 0


@pytest.mark.usefixtures("operator_behind_proxy")
def test_the_suggested_command_shows_the_failed_ranks_log(space: Space, kubelet: Kubelet, looker: Looker) -> None:
    space.create(job())
    space.until_started()
    kubelet.exit("digits-base-0-1", 11, report={"class": "DataError", "message": "no such file"})
    space.until_phase("Failed")
    page = looker.asks("digits").stdout
    command = page.splitlines()[-1].split()
    assert command[:-1] == ["next", "kubectl", "logs", "-n", space.namespace]
    assert command[-1] in space.names_of("pods")
    assert "rank 1" in page
    assert "no such file" in page


@pytest.fixture
def terminal(space: Space, looker: Looker) -> Iterator[Terminal]:
    space.create(job())
    tell(space, clusterjobs.running())
    found = Terminal([RESNETBOOST, "status", "-w"], looker.environment(), rows=30, columns=100)
    yield found
    found.close()


def test_the_picture_is_redrawn_and_ctrl_c_leaves_the_last_one(space: Space, terminal: Terminal) -> None:
    terminal.until("264/440")
    tell(space, clusterjobs.running(progress=clusterjobs.PROGRESS | {"step": 301}))
    terminal.until("301/440")
    terminal.type("\x03")
    terminal.until(re.escape("\x1b[?25h"))  # the cursor is visible again
    assert terminal.process.wait(PATIENCE_SECONDS) == 130
    assert "Traceback" not in terminal.screen
    assert "301/440" in terminal.screen.rpartition("NAME")[2]
