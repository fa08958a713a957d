"""How the pods of a gang are scheduled, in the words of Kubernetes' own Job (`spec.scheduling` of Kubernetes 1.37)."""

from typing import Annotated, ClassVar

from msgspec import Meta

from resnetboost_api.fields import ATOMIC, Block, LabelKey, ObjectName, Rule


class GangPolicy(Block, frozen=True, kw_only=True):
    """All pods of an attempt are scheduled together or none is. It has no settings: write {}."""


class BasicPolicy(Block, frozen=True, kw_only=True):
    """Each pod is scheduled by itself, as it always was. It has no settings: write {}."""


class SchedulingPolicy(Block, frozen=True, kw_only=True):
    """One of gang and basic. gang needs a scheduler that schedules gangs; without one nothing starts. Left out, a gang
    is scheduled as one where the cluster can do that.
    """

    gang: GangPolicy | None = None
    basic: BasicPolicy | None = None
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.gang) != has(self.basic)",
            "a job has one scheduling policy; give gang: {} or basic: {}, or leave schedulingPolicy out",
        ),
    )


class TopologyConstraint(Block, frozen=True, kw_only=True):
    """All pods of the gang run on nodes that have the same value of one label."""

    key: LabelKey
    """Key of the nodes' label, such as example.com/rack."""


class SchedulingConstraints(Block, frozen=True, kw_only=True):
    """Where the gang may be placed as a whole."""

    topology: Annotated[tuple[TopologyConstraint, ...], Meta(max_length=1, extra_json_schema=ATOMIC)] = ()
    """At most one label of nodes whose value all pods of the gang share."""


class Scheduling(Block, frozen=True, kw_only=True):
    """Who schedules the pods and by which rules. It can change only while the job is suspended. A queue of Kueue is
    named by the label kueue.x-k8s.io/queue-name of the job, as for every job of Kueue; one of Volcano by the annotation
    scheduling.volcano.sh/queue-name, one of YuniKorn by the label queue.
    """

    scheduler_name: ObjectName | None = None
    """Scheduler of the pods, such as volcano. Left out, it is the cluster's default scheduler."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods. Pods of a higher priority may preempt a whole gang of a lower one."""
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
