"""The container of a rank: command, environment, probe, resources."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.names import PATH_CHECKPOINTS, PATH_CONFIG, PATH_RANK_TABLE
from resnetboost_api.stage import Stage
from resnetboost_api.writing import without_nulls
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices, volumes

Manifest = dict[str, Any]

# How often kubelet probes whether rank 0 trains.
PROBE_SECONDS = 10
THREADS = "OMP_NUM_THREADS"


def container(job: Job, stage: Stage, attempt: int, index: int) -> Manifest:
    """The container of one rank. Only rank 0 has a readiness probe, and the secret of the trackers."""
    template = job.spec.template
    built: Manifest = {
        "name": names.CONTAINER,
        "image": devices.image(job.spec),
        "imagePullPolicy": template.image_pull_policy,
        "command": list(names.TRAINER_COMMAND),
        "env": [*_environment(job, stage, attempt, index), *without_nulls(template.env)],
        "ports": _ports(job, index),
        "terminationMessagePath": names.PATH_TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the log tail of a crash, for nothing
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": volumes.mounts(job, stage, index),
    }
    if secrets := _secrets(job, index):
        built["envFrom"] = [{"secretRef": {"name": name}} for name in secrets]  # `env` has precedence over it
    if index == 0:
        built["readinessProbe"] = _probe(job)
    if needed := resources(job):
        built["resources"] = needed
    return built


def _secrets(job: Job, index: int) -> list[str]:
    """The secrets whose keys become variables: of several with the same key Kubernetes takes the last."""
    tracking = job.spec.tracking
    of_trackers = tracking.secret_name if tracking is not None and index == 0 else None
    return [name for name in (job.spec.storage.secret_name, of_trackers) if name is not None]


def _ports(job: Job, index: int) -> list[Manifest]:
    """Its ports, for network policies and people. Only the launcher of index 0 listens."""
    found: list[Manifest] = [{"name": "metrics", "containerPort": names.PORT_METRICS}]
    if job.has_launchers and index == 0:
        found.append({"name": "launcher", "containerPort": names.PORT_LAUNCHER})
    return found


def _probe(job: Job) -> Manifest:
    """Readiness of rank 0: ready after its first step, not ready after `hangTimeoutSeconds` without one.

    The operator reads it where it cannot poll rank 0 itself: network policies do not apply to kubelet's probes. The
    failure threshold covers the whole timeout, so that single late answers (a rank compiles) have no effect. One rank
    is enough, because no step ends without all of them, and a thousand would cause a thousand writes.
    """
    allowed = -(-job.spec.failure_policy.hang_timeout_seconds // PROBE_SECONDS)
    return {
        "httpGet": {"path": names.PATH_TRAINING, "port": "metrics"},
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": PROBE_SECONDS // 2,
        "failureThreshold": allowed,
    }


def resources(job: Job) -> Manifest:
    """The resources of the template and one device, whose request must equal its limit."""
    device = devices.resource_name(job.spec.device)
    one = {device: 1} if device is not None else {}
    given = {kind: {**amounts, **one} for kind, amounts in without_nulls(job.spec.template.resources).items()}
    return {kind: amounts for kind, amounts in given.items() if amounts}


def _environment(job: Job, stage: Stage, attempt: int, index: int) -> list[Manifest]:
    """The trainer's environment. Without a rank table the rank is the index, which is known before binding."""
    count, by_table = stage.device_count, devices.needs_rank_table(job.spec.device, stage)
    values = {
        names.ENV_CONFIG: f"{PATH_CONFIG}/{names.CONFIG_KEY}",
        names.ENV_TERMINATION_LOG: names.PATH_TERMINATION_LOG,
        names.ENV_INDEX if by_table else names.ENV_RANK: str(index),
        names.ENV_WORLD_SIZE: str(count),
    }
    if index == 0:
        values[names.ENV_CHECKPOINTS] = PATH_CHECKPOINTS
    if by_table:
        values[names.ENV_RANK_TABLE] = PATH_RANK_TABLE
    host = names.service_host(names.gang(job.name, stage.name, attempt), job.namespace)
    if not by_table and count > 1:
        values[names.ENV_COORDINATOR] = f"{host}:{names.PORT_COORDINATOR}"
    if job.has_launchers:
        values[names.ENV_LAUNCHER_TOKEN] = f"{names.PATH_LAUNCHER}/{names.LAUNCHER_KEY}"
    if job.has_launchers and count > 1:
        values[names.ENV_LAUNCHER] = f"{host}:{names.PORT_LAUNCHER}"
    own: list[Manifest] = [{"name": name, "value": value} for name, value in values.items()]
    if all(given.name != THREADS for given in job.spec.template.env):
        own.append({"name": THREADS, "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}})
    return own
