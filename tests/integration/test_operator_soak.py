"""Soak test: many jobs under random failures; then every job ends in a healthy cluster. $CHAOS_SEED sets the seed."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from beds.cluster import ClusterError
from beds.operator import Kubelet, Operator, Proxy, Space
from beds.operator.jobs import job
from beds.operator.namespace import JOB, Manifest
from beds.operator.proxy import Call, Trouble
from beds.operator.wait import eventually
from resnetboost_api import names

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.chaos]

SEED = int(os.environ.get("CHAOS_SEED", "0"))
JOBS = tuple(f"job-{number}" for number in range(8))
RANKS = 3
SECONDS = 90.0
MOST_SECONDS_BETWEEN = 0.8  # between two failures
HEALING_SECONDS = 180.0
# Unexpected exit codes; 16 and 14 mostly blame another rank or the storage.
EXIT_CODES = (0, 0, 1, 13, 14, 16, 137)


@pytest.fixture
def operator(operator_behind_proxy: Operator) -> Operator:
    return operator_behind_proxy


class Fate:
    """Random failures; `now` causes one of them."""

    def __init__(self, space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy) -> None:
        self._space, self._kubelet, self._operator, self._proxy = space, kubelet, operator, proxy
        self._chance = random.Random(SEED)
        self._acts: dict[Callable[[], None], int] = {
            self._end_a_rank: 12,
            self._delete_a_pod: 4,
            self._evict_a_pod: 4,
            self._suspend_or_resume: 6,
            self._cut_watches: 4,
            self._fail_some_requests: 4,
            self._kill_the_operator: 3,
            self._stop_the_kubelet_for_a_while: 2,
            self._replace_a_job: 2,
            self._kill_the_api_server: 1,
        }

    def wait(self) -> None:
        """Wait for a moment without a failure."""
        time.sleep(self._chance.uniform(0, MOST_SECONDS_BETWEEN))

    def now(self) -> None:
        """Cause a random failure."""
        (act,) = self._chance.choices(list(self._acts), list(self._acts.values()))
        with contextlib.suppress(ClusterError, OSError):  # its target is gone by now
            act()

    def heal(self) -> None:
        """Stop all failures."""
        self._proxy.troubles.clear()
        self._kubelet.starts = True
        self._kubelet.release()
        self._space.plane.restart_controller_manager()
        for name in JOBS:
            self._space.change(name, runPolicy={"suspend": False})

    def _pod(self) -> str:
        pods = [str(pod["metadata"]["name"]) for pod in self._space.pods() if pod["status"]["phase"] == "Running"]
        return self._chance.choice(pods or ["none"])

    def _end_a_rank(self) -> None:
        code = self._chance.choice(EXIT_CODES)
        self._kubelet.exit(self._pod(), code, report={"step": self._chance.randrange(1000)})

    def _delete_a_pod(self) -> None:
        self._space.delete("pods", self._pod())

    def _evict_a_pod(self) -> None:
        pod = self._pod()
        self._kubelet.disrupt(pod, "EvictionByEvictionAPI")
        self._space.delete("pods", pod)

    def _suspend_or_resume(self) -> None:
        self._space.change(self._chance.choice(JOBS), runPolicy={"suspend": self._chance.random() < 0.5})

    def _cut_watches(self) -> None:
        self._proxy.cut_watches()

    def _fail_some_requests(self) -> None:
        code = self._chance.choice((0, 429, 500, 503))
        self._proxy.troubles[:] = [Trouble(self._chance.randrange(1, 6), _is_any, code=code, lost=code == 0)]

    def _kill_the_operator(self) -> None:
        self._operator.kill()
        self._operator.launch()

    def _kill_the_api_server(self) -> None:
        self._space.plane.restart_apiserver(kill=True)

    def _stop_the_kubelet_for_a_while(self) -> None:
        self._kubelet.starts = self._kubelet.ends = False
        threading.Timer(self._chance.uniform(1, 4), self._start_the_kubelet).start()

    def _start_the_kubelet(self) -> None:
        self._kubelet.starts = True
        eventually(self._hears_of_pods, bool, "the kubelet hears of its pods, perhaps when the API server is back")

    def _hears_of_pods(self) -> bool:
        try:
            self._kubelet.release()
        except (OSError, ClusterError):
            return False
        return True

    def _replace_a_job(self) -> None:
        name = self._chance.choice(JOBS)
        self._space.delete(JOB, name, propagationPolicy="Background")
        self._space.until_gone(JOB, name)
        self._space.create(new_job(name))


def _is_any(call: Call) -> bool:
    return call.collection != "leases" and not call.is_watch


def new_job(name: str) -> Manifest:
    policy = {"maxRestarts": 1000, "backoffSeconds": 0}
    return job(name, ranks=RANKS, stages=("base", "fine"), failurePolicy=policy)


def check(space: Space) -> None:
    """Invariants at every moment."""
    for found in space.all(JOB):
        attempts = [record["attempt"] for record in found.get("status", {}).get("attempts", [])]
        assert attempts == sorted(set(attempts)), f"an attempt was counted twice: {attempts}"
    alive = [place(pod) for pod in space.pods() if pod["status"]["phase"] in ("Pending", "Running")]
    assert len(alive) == len(set(alive)), f"a rank runs twice: {sorted(alive)}"


def place(pod: dict[str, Any]) -> tuple[str, ...]:
    labels = pod["metadata"]["labels"]
    return labels[names.LABEL_JOB_UID], labels[names.LABEL_STAGE], labels[names.LABEL_INDEX]


def test_after_random_failures_every_job_ends(space: Space, kubelet: Kubelet, operator: Operator, proxy: Proxy) -> None:
    space.add_claim("checkpoints")
    for name in JOBS:
        space.create(new_job(name))
    fate, end = Fate(space, kubelet, operator, proxy), time.monotonic() + SECONDS
    while time.monotonic() < end:
        fate.now()
        fate.wait()
        check(space)
    fate.heal()

    def unfinished() -> dict[str, Manifest]:
        check(space)
        for pod in space.pods():
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                with contextlib.suppress(ClusterError):
                    kubelet.exit(pod["metadata"]["name"], 0)
        statuses = {found["metadata"]["name"]: found.get("status", {}) for found in space.all(JOB)}
        return {name: status for name, status in statuses.items() if status.get("phase") != "Complete"}

    eventually(unfinished, lambda left: not left, "every job is complete", HEALING_SECONDS)
    assert sum(found["status"]["restarts"] for found in space.all(JOB)) > len(JOBS), "it was a quiet time"
