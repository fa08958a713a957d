"""One rank of a gang that goes through its preflight; the second argument is what to do to the last rank."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

import mindspore  # noqa: E402  after the coordinator has begun to import it
import msgspec  # noqa: E402

from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.failures import Interrupted, PreflightFailed  # noqa: E402
from resnetboost_trainer.preflight import conductor, workload  # noqa: E402

folder = Path(sys.argv[1])
rules = json.loads((folder / "rule.json").read_text())
device.prepare()
gang = Communicator(environment.rank, environment.world_size)
last = environment.rank == environment.world_size - 1
asked = [False]
multiplied = workload.Workload._repeated
computed_digest = workload.digest


def slowly(self: workload.Workload, launch: Any) -> Any:
    """A device that takes four times as long."""
    began = time.perf_counter()
    result = multiplied(self, launch)
    time.sleep(3 * (time.perf_counter() - began))
    return result


def flipped(values: Any) -> int:
    """A device that flips one bit of one result."""
    wrong = values.copy().reshape(-1)
    wrong.view(np.uint32)[12345] ^= 1 << 23
    return computed_digest(wrong)


def now_and_then(values: Any) -> int:
    """A device that flips a bit of some results."""
    asked.append(True)
    return flipped(values) if len(asked) % 4 == 0 else computed_digest(values)


def told_to_stop(values: Any) -> int:
    """A rank that is asked to stop while it computes."""
    asked[0] = True
    return computed_digest(values)


def random_state() -> tuple[Any, Any]:
    return np.random.get_state(legacy=False)["state"]["key"].tolist(), mindspore.get_seed()


random_before = random_state()
left: dict[str, Any] = {}
for case, rule in rules.items():
    asked[:] = [False]
    troubles = {"flipped": flipped, "unsteady": now_and_then, "stopped": told_to_stop}
    workload.digest = troubles.get(case, computed_digest) if last else computed_digest
    work = slowly if last and case.startswith("slow") else multiplied
    workload.Workload._repeated = work  # type: ignore[method-assign]
    began = time.monotonic()
    try:
        checked = msgspec.convert(rule, config.Preflight)
        run = conductor.Conductor(checked, gang, 100 + environment.rank, lambda: asked[0])
        outcome = run.run()
        left[case] = json.loads(msgspec.json.encode(outcome.result)) | {"took": time.monotonic() - began}
        left[case]["own"] = msgspec.to_builtins(outcome.own)
        conductor.judge(outcome.result, checked, gang)
    except (Interrupted, PreflightFailed) as error:
        left.setdefault(case, {})["error"] = f"{error.name}: {error}"
left["same random state"] = random_before == random_state()
np.savez(folder / f"rank-{environment.rank}.npz", left=json.dumps(left))
gang.leave()
rendezvous.close()
os._exit(0)
