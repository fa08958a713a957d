"""A fake kubelet and trainer for the pods of one namespace, under the test's control; the real scheduler binds them."""

import base64
import contextlib
import itertools
import json
import random
import threading
from collections.abc import Iterator
from typing import Any, Self

from beds.cluster import ClusterError, ControlPlane
from beds.operator import podstatus
from beds.operator.launchers import PlayedLaunchers
from beds.operator.progress_server import ProgressPort
from resnetboost_api import names

Manifest = dict[str, Any]

_STRATEGIC = "application/strategic-merge-patch+json"
_WATCH_SECONDS = 5  # the thread may outlive its test by this much
_PAUSE_SECONDS = 0.02


class Kubelet:
    """Fake kubelets and trainers as a context manager. Attributes set the automatic behaviour:

    starts: a bound pod runs at once.
    ends: a deleted pod stops within its grace period, as a trainer does after SIGTERM, and is removed.
    succeeds: a running pod exits with 0 at once.
    saved_step: the step that rank 0 reports as saved when it is stopped.
    told: rank 0's answer on /progress, besides stage and attempt; None: nothing listens there.
    told_of: the same for the job of that name alone.
    launches: each gang has launchers, of which index 0's pod plays all (`launchers`, by the gang's name). Without, pods
    are those of an image that knows no launchers.
    launcher_patience_seconds: how long launchers wait for a command after their rank has failed.

    `seen` are the names of all pods so far, by uid.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._stopping = threading.Event()
        self._addresses = _loopback_addresses()
        self._ports: dict[str, ProgressPort] = {}
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self.starts = True
        self.ends = True
        self.succeeds = False
        self.saved_step: int | None = None
        self.told: Manifest | bytes | None = None
        self.told_of: dict[str, Manifest | bytes] = {}
        self.launches = False
        self.launcher_patience_seconds = 10.0
        self.launchers: dict[str, PlayedLaunchers] = {}
        self.seen: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for port in self._ports.values():
            port.close()
        for launchers in self.launchers.values():
            launchers.close()

    # Actions of a test

    def exit(self, name: str, code: int, reason: str = "", report: Manifest | None = None) -> None:
        """End a pod's container; `report` is the trainer's termination message."""
        default = "Completed" if code == 0 else "Error"
        self._patch(name, podstatus.ended(code, reason or default, json.dumps(report) if report else ""))

    def succeed(self, *names: str) -> None:
        """End the containers of a gang's pods, as trainers that have completed their stage; the leader's last."""
        for name in reversed(names):
            report = {"class": "Succeeded", "step": 44, "top1": 0.97} if name.endswith("-0") else None
            self.exit(name, 0, report=report)

    def disrupt(self, name: str, reason: str) -> None:
        """Mark a pod as about to be disrupted by Kubernetes."""
        self._patch(name, podstatus.disrupted(reason))

    def wait_for_image(self, name: str, reason: str, message: str) -> None:
        """Leave a bound pod waiting for its image."""
        self._patch(name, podstatus.waiting(reason, message))

    def tell(self, step: int, **progress: Any) -> None:
        """From now on rank 0 trains and reports this on /progress."""
        self.told = {"state": "Training", "step": step, "heartbeat": step, **progress}

    def asked(self, name: str) -> list[float]:
        """Times (monotonic) at which a pod was polled for its progress."""
        return list(self._ports[name].asked) if name in self._ports else []

    def stop(self, name: str) -> None:
        """End the container of a deleted pod as after SIGTERM; the pod object stays."""
        self._stop(self._get(name))

    def release(self) -> None:
        """Confirm the end of every deleted pod, now and from now on."""
        self.ends = True
        for pod in json.loads(self._plane.client.get(self._path))["items"]:
            self._look(pod)

    # Automatic behaviour

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            # Some tests restart the API server.
            with contextlib.suppress(OSError, ClusterError, ValueError):
                self._follow()

    def _follow(self) -> None:
        listed = json.loads(self._plane.client.get(self._path))
        for pod in listed["items"]:
            self._look(pod)
        version = listed["metadata"]["resourceVersion"]
        query = f"watch=true&resourceVersion={version}&timeoutSeconds={_WATCH_SECONDS}"
        for line in self._plane.client.lines(f"{self._path}?{query}"):
            if self._stopping.is_set():
                return
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED"):
                self._look(event["object"])

    def _look(self, pod: Manifest) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        self.seen[metadata["uid"]] = metadata["name"]
        with contextlib.suppress(ClusterError):  # others change pods too; a later event brings the result
            if "deletionTimestamp" in metadata:
                if self.ends:
                    self._end(pod)
            elif phase == "Pending" and self.starts and pod["spec"].get("nodeName"):
                self._run(pod)
            elif phase == "Running" and self.succeeds:
                self.exit(metadata["name"], 0)

    def _run(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._started:
            address = next(self._addresses)
            if self.launches:
                self._launch(pod, address)
            self._serve_progress(pod, address)
            self._patch(pod["metadata"]["name"], podstatus.running(address))
            self._started.add(uid)

    def _end(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._ended:
            self._stop(pod)
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self._plane.client.send("DELETE", f"{self._path}/{pod['metadata']['name']}", options)
            self._ended.add(uid)

    def _stop(self, pod: Manifest) -> None:
        if _is_rank_0(pod) and (launchers := self.launchers.get(pod["metadata"]["name"].rpartition("-")[0])):
            launchers.leave()
        if pod["status"].get("phase") != "Running":
            return
        report: Manifest = {"class": "Interrupted", "message": "stopped by SIGTERM"}
        if self.saved_step is not None and _is_rank_0(pod):
            report |= {"step": self.saved_step, "checkpointStep": self.saved_step}
        self.exit(pod["metadata"]["name"], 16, report=report)

    def _launch(self, pod: Manifest, address: str) -> None:
        """Play the launchers of the pod's gang, if it is the leader's and the job has launchers."""
        volume = next((one for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_LAUNCHER), None)
        if volume is None or not _is_rank_0(pod):
            return
        gang, secrets = pod["metadata"]["name"].rpartition("-")[0], self._path.removesuffix("pods") + "secrets"
        secret = json.loads(self._plane.client.get(f"{secrets}/{volume['secret']['secretName']}"))
        variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        self.launchers[gang] = PlayedLaunchers(
            address,
            base64.b64decode(secret["data"][names.LAUNCHER_KEY]),
            int(variables[names.ENV_WORLD_SIZE]),
            int(pod["metadata"]["labels"][names.LABEL_ATTEMPT]),
            lambda index, code: self.exit(f"{gang}-{index}", code),
        )
        self.launchers[gang].unanswered_seconds = self.launcher_patience_seconds

    def _serve_progress(self, pod: Manifest, address: str) -> None:
        labels = pod["metadata"].get("labels") or {}
        if not _is_rank_0(pod) or self._told(labels) is None:
            return
        gang = pod["metadata"]["name"].rpartition("-")[0]

        def tell() -> bytes:
            told, launchers = self._told(labels), self.launchers.get(gang)
            attempt = int(labels[names.LABEL_ATTEMPT]) if launchers is None else launchers.attempt
            place = {"stage": labels[names.LABEL_STAGE], "attempt": attempt}
            return told if isinstance(told, bytes) else json.dumps(place | (told or {})).encode()

        self._ports[pod["metadata"]["name"]] = ProgressPort(address, tell)

    def _told(self, labels: dict[str, str]) -> Manifest | bytes | None:
        return self.told_of.get(labels[names.LABEL_JOB], self.told)

    def _get(self, name: str) -> Manifest:
        pod: Manifest = json.loads(self._plane.client.get(f"{self._path}/{name}"))
        return pod

    def _patch(self, name: str, status: Manifest) -> None:
        self._plane.client.send("PATCH", f"{self._path}/{name}/status", {"status": status}, _STRATEGIC)


def _is_rank_0(pod: Manifest) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(names.LABEL_INDEX) == "0")


def _loopback_addresses() -> Iterator[str]:
    """Loopback addresses for pods, from a range that no other test is likely to use at the same time."""
    corner = f"127.{random.randrange(64, 255)}.{random.randrange(256)}"
    return (f"{corner}.{number}" for number in itertools.chain(range(1, 255), itertools.cycle(range(1, 255))))
