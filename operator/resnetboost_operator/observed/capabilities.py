"""Capabilities: which optional APIs of schedulers and queues a cluster serves and this operator may use."""

import msgspec

# Group and version of each API with PodGroups that a gang scheduler of ours reads.
KUBERNETES_1_36 = "scheduling.k8s.io/v1alpha2"
KUBERNETES_1_37 = "scheduling.k8s.io/v1beta1"
VOLCANO = "scheduling.volcano.sh/v1beta1"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
POD_GROUP_APIS = (KUBERNETES_1_37, KUBERNETES_1_36, VOLCANO, COSCHEDULING)
KUEUE = "kueue.x-k8s.io/v1beta2"


class Capabilities(msgspec.Struct, frozen=True):
    """What discovery found. The defaults are a cluster without any of them, such as this machine.

    `pod_groups`: the POD_GROUP_APIS that are served. `kueue`: Workloads of the version KUEUE are served.
    `gangs_enabled`, `kueue_enabled`: whether the operator was started with the right to use them.
    """

    pod_groups: frozenset[str] = frozenset()
    kueue: bool = False
    gangs_enabled: bool = False
    kueue_enabled: bool = False
