"""Names shared by operator, trainer and cluster: labels, objects, environment variables, ports, paths."""

GROUP = "resnetboost.io"
VERSION = "v1alpha1"
KIND = "ResNetBoostJob"
PLURAL = "resnetboostjobs"
SINGULAR = "resnetboostjob"
API_VERSION = f"{GROUP}/{VERSION}"

# Labels on everything a job owns. The attempt label is the restart counter that makes a gang restart crash-safe
# (JobSet's `restart-attempt`): a pod whose attempt is not the status' is stale, whoever created it.
LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_STAGE = f"{GROUP}/stage"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_INDEX = f"{GROUP}/index"
LABEL_NODE_GROUP = f"{GROUP}/node-group"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "resnetboost-operator"

# On the lease by which an operator leads: people and programs find it by the label, others the pod of its holder by the
# annotation.
LABEL_LEASE = f"{GROUP}/lease"
LEASE_OF_OPERATOR = "operator"
ANNOTATION_HOLDER_POD = f"{GROUP}/holder-pod"

# On a pod that knows its rank table: the table's sha256. The change makes its kubelet look at its volumes at once.
ANNOTATION_RANK_TABLE = f"{GROUP}/rank-table"

# On nodes that fail across jobs, where an administrator wants it: the taint, and the time of its end.
TAINT_FAILING = f"{GROUP}/failing"
ANNOTATION_FAILING_UNTIL = f"{GROUP}/failing-until"

# On the jobs of a sweep: its name and the number of the trial, what the trial is of and has set, and why it was ended
# before its end.
LABEL_SWEEP = f"{GROUP}/sweep"
LABEL_TRIAL = f"{GROUP}/trial"
ANNOTATION_TRIAL = f"{GROUP}/sweep-trial"
ANNOTATION_PRUNED = f"{GROUP}/sweep-pruned"

NODE_TOPOLOGY = "kubernetes.io/hostname"

# Kueue's label and annotation on jobs (kueue/pkg/controller/constants).
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
# Annotations of a job that its pods get too: an Ascend 950 (huawei.com/npu) is scheduled by this one.
PASSED_ANNOTATIONS = ("huawei.com/schedule_policy",)
# Queues of gang schedulers, as their users name them on a job: Volcano's annotation (or label), YuniKorn's label.
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
YUNIKORN_QUEUE = "queue"

CONTAINER = "trainer"
TRAINER_COMMAND = ("python", "-m", "resnetboost_trainer")

# The environment is the whole contract with the trainer, beside the config file.
ENV_CONFIG = "RESNETBOOST_CONFIG"
ENV_CHECKPOINTS = "RESNETBOOST_CHECKPOINTS"
ENV_RANK = "RESNETBOOST_RANK"
ENV_INDEX = "RESNETBOOST_INDEX"
ENV_RANK_TABLE = "RESNETBOOST_RANK_TABLE"
ENV_WORLD_SIZE = "RESNETBOOST_WORLD_SIZE"
ENV_COORDINATOR = "RESNETBOOST_COORDINATOR"
ENV_TERMINATION_LOG = "RESNETBOOST_TERMINATION_LOG"
ENV_BIND_ADDRESS = "RESNETBOOST_BIND_ADDRESS"
# The file with the gang's token. Where it is set, `python -m resnetboost_trainer` is a launcher, which starts the rank
# as its child; an image of an earlier version ignores it and is the rank itself.
ENV_LAUNCHER_TOKEN = "RESNETBOOST_LAUNCHER_TOKEN"
# host:port of the leader's launcher, for the others.
ENV_LAUNCHER = "RESNETBOOST_LAUNCHER"

VOLUME_CONFIG = "config"
VOLUME_CHECKPOINTS = "checkpoints"
PATH_CONFIG = "/etc/resnetboost"
PATH_CHECKPOINTS = "/checkpoints"
PATH_TERMINATION_LOG = "/dev/termination-log"
CONFIG_KEY = "config.yaml"

VOLUME_RANK_TABLE = "rank-table"
VOLUME_SHARED_MEMORY = "shared-memory"
PATH_RANK_TABLE = "/user/serverid/devindex/config"  # where images for Ascend look for it
PATH_SHARED_MEMORY = "/dev/shm"
RANK_TABLE_KEY = "hccl.json"
RANKS_KEY = "ranks.json"
VOLUME_LAUNCHER = "launcher-token"
PATH_LAUNCHER = "/etc/resnetboost-launcher"
LAUNCHER_KEY = "token"

PORT_METRICS = 9400
# On that port: 200 while the rank takes steps. What kubelet hears of it is the condition of rank 0's pod.
PATH_TRAINING = "/training"
PORT_LAUNCHER = 9401
PORT_COORDINATOR = 8118  # msrun's default


def gang(job: str, stage: str, attempt: int) -> str:
    """Name of an attempt's headless service and prefix of its pods."""
    return f"{job}-{stage}-{attempt}"


def config_map(job: str, uid: str, stage: str, attempt: int) -> str:
    """Name of an attempt's config map, with the job's uid.

    kubelet looks at an immutable config map once and keeps it while a pod of its node mounts that name. Without the uid
    a job that is deleted and applied again would train with the settings of the earlier one, whose pods still stop.
    """
    return f"{gang(job, stage, attempt)}-{uid[:8]}"


def launcher_secret(job: str, uid: str, key_id: str = "") -> str:
    """Name of the secret with the token of a job's launchers; an earlier job of the same name had another one, as has
    this job's under another key of the operator.
    """
    return "-".join(filter(None, (job, "launcher", uid[:8], key_id)))


def rank_table(job: str, uid: str, stage: str, attempt: int) -> str:
    """Name of the config map with an attempt's rank table."""
    return f"{config_map(job, uid, stage, attempt)}-ranks"


def pod(job: str, stage: str, attempt: int, index: int) -> str:
    """Name of one pod; within 63 characters because the CRD bounds job and stage (hostnames are cut there)."""
    return f"{gang(job, stage, attempt)}-{index}"


def service_host(service: str, namespace: str) -> str:
    """DNS name of a service, without the cluster's domain, which nobody but kubelet knows."""
    return f"{service}.{namespace}.svc"
