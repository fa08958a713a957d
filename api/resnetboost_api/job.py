"""The spec of a ResNetBoostJob, with the rules that look at several of its parts."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api import names
from resnetboost_api.dataset import Dataset
from resnetboost_api.device import Device
from resnetboost_api.fields import NO_DEFAULT, Block, Rule, Seed, keyed, rules
from resnetboost_api.jobrules import ACROSS_PARTS, ACROSS_STAGES, NAMES
from resnetboost_api.model import Model
from resnetboost_api.policies import Checkpoint, FailurePolicy, RunPolicy
from resnetboost_api.preflight import Preflight
from resnetboost_api.scheduling import Scheduling
from resnetboost_api.stage import Stage
from resnetboost_api.status import Status
from resnetboost_api.storage import Storage
from resnetboost_api.template import Template
from resnetboost_api.tracking import Tracking

JitLevel = Literal["O0", "O1"]


class Spec(Block, frozen=True, kw_only=True):
    """What to train and how. It cannot change once the job exists, but for runPolicy, tracking, the number of devices
    and, of failurePolicy, maxRestarts, rules, nodeExclusion and straggler.
    """

    seed: Seed = 0
    """Seed of the initial weights and of the order of the data. The same seed, spec and number of ranks give the same
    result, bit for bit.
    """
    jit_level: JitLevel | None = None
    """How MindSpore compiles for Ascend and GPU. O0: each operator is a kernel; O1: neighbouring operators are fused
    into one where it can (graph kernels), which the bits of results may depend on. Left out, MindSpore chooses by
    the device.
    """
    device: Device = Device()
    model: Model
    dataset: Dataset
    stages: Annotated[
        tuple[Stage, ...],
        Meta(
            min_length=1,
            max_length=16,
            extra_json_schema={
                **keyed("name"),
                **rules(*ACROSS_STAGES),
            },
        ),
    ]
    """The parts of the training, run in this order. Each starts from the weights the one before ended with, unless its
    startFrom names others, and has an optimizer, a schedule, an epoch count and a number of devices of its own.
    """
    checkpoint: Checkpoint = Checkpoint()
    run_policy: RunPolicy = RunPolicy()
    failure_policy: FailurePolicy = FailurePolicy()
    preflight: Preflight | None = None
    tracking: Tracking | None = None
    scheduling: Scheduling = Scheduling()
    storage: Storage = Storage()
    template: Template = Template()
    RULES: ClassVar[tuple[Rule, ...]] = ACROSS_PARTS


class Metadata(Block, frozen=True, kw_only=True):
    """Kubernetes' own, of which a CRD may speak of the name alone."""

    name: Annotated[str, Meta(max_length=253, extra_json_schema=NO_DEFAULT)] = ""
    """Name of the job. Services and pods are named after it."""


class ResNetBoostJob(Block, frozen=True, kw_only=True):
    """A ResNetBoostJob trains a ResNet on one or more devices, in stages that run one after another. Each stage starts
    from the last checkpoint of the one before, unless it names another.
    """

    api_version: Annotated[str, Meta(extra_json_schema=NO_DEFAULT)] = names.API_VERSION
    """Always resnetboost.io/v1alpha1."""
    kind: Annotated[str, Meta(extra_json_schema=NO_DEFAULT)] = names.KIND
    """Always ResNetBoostJob."""
    metadata: Annotated[Metadata, Meta(extra_json_schema={"default": None, "description": None})] = Metadata()
    spec: Spec
    status: Annotated[Status, Meta(extra_json_schema=NO_DEFAULT)] = Status()
    RULES: ClassVar[tuple[Rule, ...]] = NAMES
