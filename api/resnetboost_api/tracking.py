"""Trackers: where metrics, parameters and files of a job go beside metrics.csv and Prometheus."""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from resnetboost_api.fields import Block, ObjectName, Rule, keyed, rules
from resnetboost_api.storage import ADDRESS
from resnetboost_api.template import MOUNT_PATH

TrackerName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=20,
        pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$",
        title="a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
]
# Without user information, a query and a fragment: what stands in a job is no secret.
Address = Annotated[
    str,
    Meta(
        max_length=1024,
        pattern=r"^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~%/-]*)?$",
        title="an address such as http://mlflow.example:5000, without user name, password and query",
    ),
]
FolderOrAddress = Annotated[
    str,
    Meta(
        min_length=2,
        max_length=1024,
        pattern=f"{MOUNT_PATH}|{ADDRESS}",
        title="an absolute path such as /data, without '.', '..' or a '/' at its end, or an address such as s3://bucket/path",
    ),
]
ClassName = Annotated[
    str,
    Meta(
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        title="a module and a class in it, such as my_package.trackers:Wandb",
    ),
]
Options = Annotated[
    dict[str, Annotated[str, Meta(max_length=1024, description="Value of the option.")]],
    Meta(
        max_length=32,
        extra_json_schema=rules(
            Rule(
                "self.all(k, k.matches('^[A-Za-z_][-._A-Za-z0-9]{0,62}$'))",
                "options have names of at most 63 letters, digits, '-', '_' and '.', such as project; correct the name",
            )
        ),
    ),
]


class TensorBoard(Block, frozen=True, kw_only=True):
    """Event files for TensorBoard."""

    path: FolderOrAddress | None = None
    """Folder for the event files, or an address in object storage such as s3://bucket/tensorboard, with a folder for
    each job and stage in it. Left out, it is the folder tensorboard beside the checkpoints.
    """


class MLflow(Block, frozen=True, kw_only=True):
    """One run of an MLflow server for the whole job, across its stages and restarts."""

    tracking_uri: Address | None = None
    """Address of the server. Left out, it is that of the environment variable MLFLOW_TRACKING_URI."""
    experiment: (
        Annotated[str, Meta(min_length=1, max_length=250, pattern=r"^[^\x00-\x1f]+$", title="one line of text")] | None
    ) = None
    """Name of the experiment, which is created if it does not exist. Left out, it is that of the environment variable
    MLFLOW_EXPERIMENT_NAME, or else resnetboost.
    """


class Callback(Block, frozen=True, kw_only=True):
    """A tracker of your own: a subclass of resnetboost_trainer.tracking.Tracker that the trainer's image contains."""

    name: TrackerName
    """Name of the tracker in logs and metrics, unique in the list."""
    tracker: ClassName
    """Module and class, such as my_package.trackers:Wandb."""
    options: Options = field(default_factory=dict)
    """Options for the tracker. What is secret comes by secretName instead."""
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(self.name in ['tensorboard', 'mlflow'])",
            "tensorboard and mlflow are the names of trackers that exist; use another name",
            field_path=".name",
            reason="FieldValueForbidden",
        ),
    )


class Trackers(Block, frozen=True, kw_only=True):
    """What is tracked and where: what a rank gets too."""

    every_steps: Annotated[int, Meta(ge=1, le=1000000)] = 10
    """Steps between two points of the curves of steps. Evaluations are always sent."""
    tensorboard: TensorBoard | None = None
    mlflow: MLflow | None = None
    callbacks: Annotated[tuple[Callback, ...], Meta(max_length=8, extra_json_schema=keyed("name"))] = ()
    """Trackers of your own."""


class Tracking(Trackers, frozen=True, kw_only=True):
    """Where rank 0 sends metrics, parameters and files of the job. A tracker that is slow or out of reach neither slows
    nor ends the training. Changes hold from the next attempt on.
    """

    secret_name: ObjectName | None = None
    """Secret in the job's namespace whose keys become environment variables of rank 0, such as MLFLOW_TRACKING_TOKEN.
    `resnetboost run` takes the variables of its shell instead.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.tensorboard) || has(self.mlflow) || size(self.callbacks) > 0",
            "tracking names no tracker; add tensorboard: {}, mlflow or callbacks, or leave tracking out",
        ),
    )
