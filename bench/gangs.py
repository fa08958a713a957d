"""Many gangs on devices for a few, under Kubernetes' own gang scheduler: how fast they drain, and whether they block.

Jobs of 5 ranks are created all at once on kwok nodes; each ends a fixed time after its last rank began to run. Ideally
all devices are in use all the time. GANGS_JOBS and GANGS_SECONDS in the environment make it shorter: GANGS_JOBS=40.
The start of the first gangs then weighs more, so only whole runs compare.
"""

import os
import time

from beds.cluster import ControlPlane
from beds.cluster.nodes import RESOURCE
from beds.cluster.releases import WITH_GANGS
from beds.operator import Account, Operator
from beds.operator.service_account import GANG_RULES
from bench import scale_jobs
from bench.entries import Entry, figure, ratio
from bench.gang_drain import SIZE, Drain

JOBS = int(os.environ.get("GANGS_JOBS", "200"))
RUN_SECONDS = float(os.environ.get("GANGS_SECONDS", "10"))
NODES, PER_NODE = 25, 4  # a gang never fits on one node


def measure() -> list[Entry]:
    """One drain, of all jobs."""
    with ControlPlane(crds=[scale_jobs.CRD], release=WITH_GANGS) as plane:
        plane.add_kwok_nodes(NODES, {RESOURCE: str(PER_NODE)})
        scale_jobs.prepare(plane)
        account = Account(plane)
        account.allow(GANG_RULES)
        operator = Operator(plane, account.kubeconfig, options=["--gang-scheduling"])
        operator.start()
        with Drain(plane, scale_jobs.NAMESPACE, RUN_SECONDS) as drain:
            began = time.monotonic()
            drain.create(JOBS)
            seconds = drain.until_complete(limit_seconds=10 * _ideal_seconds() + 120) - began
        operator.terminate()
    return [
        figure("gang_drain_deadlocks", [drain.deadlocks], "gangs", f"of {JOBS}; devices held by a part of a gang"),
        ratio("gang_drain_vs_ideal", [seconds], [_ideal_seconds()], "s", f"{JOBS} gangs, no device ever idle"),
    ]


def _ideal_seconds() -> float:
    return JOBS * SIZE / (NODES * PER_NODE) * RUN_SECONDS
