"""`resnetboost plan`: prints the Kubernetes objects of a job's first attempt, without a cluster."""

from pathlib import Path
from typing import Any

import click

from resnetboost_api.status import Status
from resnetboost_operator import yamltext
from resnetboost_operator.cli import arguments, job_file
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.observed.capabilities import POD_GROUP_APIS, Capabilities
from resnetboost_operator.observed.state import Observation
from resnetboost_operator.planning import plan as planning
from resnetboost_operator.validation.notes import notes, of_cluster

PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


@click.command()
@arguments.FILE
@arguments.SET
def plan(file: Path, assignments: tuple[str, ...]) -> None:
    """Print the Kubernetes objects of the job's first attempt as YAML.

    Creates nothing. The job's uid is a placeholder. A gang scheduler that the job asks for is taken to be there.

    \b
    Examples:
      resnetboost plan examples/digits.yaml
      resnetboost plan examples/digits.yaml --set device.count=4 | less
    """
    job = job_file.load(file, assignments)
    for note in (*notes(job["spec"]), *of_cluster(job["spec"])):
        click.echo(f"resnetboost: note: {note}", err=True)
    click.echo(yamltext.dump_all(objects(job)), nl=False)


def objects(job: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The objects that the operator would create for the defaulted `job`, in order; a suspended job as if resumed."""
    metadata = {"uid": PLACEHOLDER_UID, **job["metadata"]}
    policy = {**job["spec"]["runPolicy"], "suspend": False}
    parsed = parse_job({**job, "metadata": metadata, "spec": {**job["spec"], "runPolicy": policy}})
    return planning.plan(parsed, Status(), Observation(capabilities=_capabilities(parsed)), now=0.0).create


def _capabilities(job: Job) -> Capabilities:
    """Those of a cluster with the scheduler that the job asks for, or of one without gang scheduling."""
    wanted = job.spec.scheduling
    gang = wanted.scheduling_policy is not None and wanted.scheduling_policy.gang is not None
    if not gang and wanted.scheduler_name is None:
        return Capabilities()
    return Capabilities(pod_groups=frozenset(POD_GROUP_APIS), gangs_enabled=True)
