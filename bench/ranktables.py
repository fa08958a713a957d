"""Seconds from the device plugin's last annotation until every pod of a gang on Ascend has its rank table.

On a real API server with kwok nodes, whose pods have no kubelet; the tests on a real kubelet print what that adds. All
of it shares this machine. RANKTABLE_SIZES in the environment changes the sizes: RANKTABLE_SIZES=16.
"""

import json
import os
import threading
import time
from typing import Any

from beds.cluster import ControlPlane
from beds.operator import Account, Operator, Space
from beds.operator.devices import PER_NODE, RESOURCE, DevicePlugin
from beds.operator.jobs import job
from beds.operator.namespace import is_true
from bench import scale_jobs
from bench.entries import Entry, figure
from resnetboost_api import names

SIZES = tuple(int(size) for size in os.environ.get("RANKTABLE_SIZES", "16,64,256,1024").split(","))
ROUNDS = 2
PATIENCE_SECONDS = 300.0
# Until the condition reports the missing annotation, which is written at most every 5 s.
SETTLE_SECONDS = 6.0


def measure() -> list[Entry]:
    """One control plane and operator for all sizes."""
    with ControlPlane(crds=[scale_jobs.CRD]) as plane:
        plane.add_kwok_nodes(-(-max(SIZES) // PER_NODE), {RESOURCE: str(PER_NODE)})
        operator = Operator(plane, Account(plane).kubeconfig)
        operator.start()
        found = [entry for size in SIZES for entry in _size(plane, size)]
        operator.terminate()
    return found


def _size(plane: ControlPlane, size: int) -> list[Entry]:
    namespace = f"gang-of-{size}"
    plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    space = Space(plane, namespace, PATIENCE_SECONDS)
    seconds = [_delivery(space, size) for _ in range(ROUNDS)]
    what = f"last annotation to rank table at last of {size} pods"
    return [
        figure(name, seconds, "s", what) for name in (f"ranktable_told_seconds_{size}", f"rank_table_{size}_seconds")
    ]


def _delivery(space: Space, size: int) -> float:
    space.create(job(device={"type": "Ascend", "count": size, "driverMounts": False}))
    space.until_started()
    plugin, pods = DevicePlugin(space.plane, space.namespace), space.pods()
    for pod in pods[:-1]:
        plugin.allocate(pod)
    time.sleep(SETTLE_SECONDS)
    watch = _AnnotationWatch(space, size)
    begun = time.monotonic()
    plugin.allocate(pods[-1])
    seconds = watch.wait() - begun
    space.until(lambda status: is_true(status, "RankTableReady"), "the rank table is published")
    space.delete("resnetboostjobs", "digits")
    space.until_names("pods")
    return seconds


class _AnnotationWatch:
    """Watches the pods of a gang until each has the annotation of its rank table."""

    def __init__(self, space: Space, size: int) -> None:
        path = f"/api/v1/namespaces/{space.namespace}/pods"
        version = json.loads(space.plane.client.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
        query = f"watch=true&resourceVersion={version}&timeoutSeconds={int(PATIENCE_SECONDS)}"
        self._lines = space.plane.client.lines(f"{path}?{query}")
        self._size, self._at = size, 0.0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """Return when the last pod had the annotation (monotonic seconds)."""
        self._thread.join(PATIENCE_SECONDS)
        return self._at

    def _follow(self) -> None:
        annotated: set[str] = set()
        for line in self._lines:
            pod: dict[str, Any] = json.loads(line)["object"]
            if names.ANNOTATION_RANK_TABLE in pod["metadata"].get("annotations", {}):
                annotated.add(pod["metadata"]["name"])
            if len(annotated) == self._size:
                self._at = time.monotonic()
                return
