"""Object storage: addresses, and what a job says about the access to it."""

from typing import Annotated, ClassVar

from msgspec import Meta

from resnetboost_api.fields import Block, ObjectName, Rule, rules

# A bucket's name by S3's rules, then a path.
ADDRESS = r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[^\x00]*)?$"

StorageAddress = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=ADDRESS,
        title="an address in object storage such as s3://bucket/path",
    ),
]
Location = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=r"^[^\x00]*$",
        title="the path of a file or folder, without the character NUL, or an address such as s3://bucket/path",
        extra_json_schema=rules(
            Rule(
                f"!self.contains('://') || self.matches(r'{ADDRESS}')",
                """
                a path is a file or folder that the pod mounts, or an address in object storage such as
                s3://bucket/path; mount it by template.volumes and give the path there, or correct the address
                """,
            )
        ),
    ),
]


class ObjectStorage(Block, frozen=True, kw_only=True):
    """How the trainer uses object storage: what it gets too."""

    retry_seconds: Annotated[int, Meta(ge=1, le=86400)] = 300
    """Seconds that a request is repeated for, ever more slowly, while the storage does not answer. Then the rank fails
    with StorageError, and the gang is started again as failurePolicy says. Uploads are repeated beside the training.
    """
    cache_path: (
        Annotated[
            str,
            Meta(
                min_length=2,
                max_length=1024,
                pattern=r"^(/\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)+$",
                title="an absolute path such as /cache, without '.', '..' or a '/' at its end",
            ),
        ]
        | None
    ) = None
    """Folder for copies of data and weights from object storage, under one of template.volumeMounts: on a volume
    that outlives the pods, later ones find them. Left out, it is in the pod's own /tmp.
    """
    cache_gigabytes: Annotated[int, Meta(ge=1, le=1000000)] = 20
    """Gibibytes that these copies may take. Those that were used the longest time ago are deleted first."""


class Storage(ObjectStorage, frozen=True, kw_only=True):
    """Access to object storage, for paths and addresses that begin with s3://."""

    secret_name: ObjectName | None = None
    """Secret of the job's namespace whose keys become environment variables of the trainer: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION and the like. Left out, the pods have them by a role of their
    service account or node. `resnetboost run` takes them from the shell instead.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self == oldSelf",
            """
            storage cannot change once the job exists; change the Secret, whose new values new pods get, or delete the
            job and apply it again
            """,
        ),
    )
