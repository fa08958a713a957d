"""The trainer's configuration of one attempt, built from the job."""

from typing import Any

from resnetboost_operator import api
from resnetboost_operator.manifests.metadata import plain

Manifest = dict[str, Any]


def trainer_config(job: api.Job, stage: api.Stage, attempt: int) -> Manifest:
    """The stage's configuration, with the job's field names and without anything of Kubernetes.

    Of nodes the trainer knows only how many ranks Adasum averages before it sums. Its rank comes from the environment.
    """
    spec = job.spec
    config = {
        "job": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "stage": stage.name,
        "attempt": attempt,
        "seed": spec.seed,
        "device": {"type": spec.device.type},
        "model": plain(spec.model),
        "dataset": plain(spec.dataset),
        "checkpoint": {
            "everySteps": spec.checkpoint.every_steps,
            "keep": spec.checkpoint.keep,
            "resume": spec.checkpoint.resume,
            "keepCompiledGraphs": spec.checkpoint.keep_compiled_graphs,
        },
    }
    if spec.jit_level is not None:
        config["jitLevel"] = spec.jit_level
    config |= {key: value for key, value in plain(stage).items() if key not in ("name", "deviceCount")}
    if stage.adasum is not None:
        averaged = api.ranks_per_summand(spec.device, stage)
        config["adasum"] = {"reduce": stage.adasum.reduce, "ranksPerNode": averaged}
    if stage.start_from is None and stage != spec.stages[0]:
        config["startFrom"] = {"stage": spec.stages[spec.stages.index(stage) - 1].name}
    return config
