"""The versions of Kubernetes that a control plane can have, with the options of each; it starts none of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beds.cluster import build

_GANG_GATES = (
    "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"
)


class Release(NamedTuple):
    """Both by the part's name.

    programs: what `build` calls the program. options: what it is started with beside what every release is.
    """

    programs: Mapping[str, str]
    options: Mapping[str, Sequence[str]]


DEFAULT = Release({name: name for name in build.CONTROL_PLANE}, {})
# PodGroups of scheduling.k8s.io/v1alpha2, all off by default: gangs, topology and preemption by the whole group.
WITH_GANGS = Release(
    {name.removesuffix("-1.36"): name for name in build.GANG_CONTROL_PLANE},
    {
        "kube-apiserver": (
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
            f"--feature-gates={_GANG_GATES}",
        ),
        "kube-controller-manager": ("--feature-gates=GenericWorkload=true",),
        "kube-scheduler": (f"--feature-gates={_GANG_GATES}",),
    },
)
