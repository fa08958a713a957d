"""ResNetBoost from Python: load, change, check and run a job, apply it to a cluster, and read its results.

A front end like the command line, and over the same code: it adds no setting and no rule of its own. Importing it
imports neither MindSpore nor Kubernetes.
"""

from resnetboost.cluster import ClusterJob
from resnetboost.job import Job
from resnetboost.result import Checkpoint, Run, RunFailed
from resnetboost.table import Table
from resnetboost_api.job import Spec
from resnetboost_api.status import Status
from resnetboost_operator import __version__
from resnetboost_operator.cli.job_file import JobError
from resnetboost_operator.errors import UserError

__all__ = [
    "Checkpoint",
    "ClusterJob",
    "Job",
    "JobError",
    "Run",
    "RunFailed",
    "Spec",
    "Status",
    "Table",
    "UserError",
    "__version__",
]
