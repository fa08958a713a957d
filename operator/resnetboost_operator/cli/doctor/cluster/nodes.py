"""Nodes: how many are ready, which devices they offer, and whether their labels name an Ascend chip."""

from collections import Counter
from collections.abc import Iterator, Sequence

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator import readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Manifest, Unknown, name, unknown
from resnetboost_operator.kubeclient.inspector import MOST_ITEMS
from resnetboost_operator.manifests import devices
from resnetboost_operator.observed import nodes as views

# What jobs ask for by default; another resource is named in device.resourceName.
ASCEND = tuple(name for name in (devices.TYPES["Ascend"].resource_name, devices.RESOURCE_OF_950) if name)
GPU = (devices.TYPES["GPU"].resource_name or "",)
_VENDORS = ("huawei.com/", "nvidia.com/", "amd.com/")


def check(facts: Facts) -> Iterator[Finding]:
    """Say what a job can get."""
    if isinstance(facts.nodes, Unknown):
        yield from unknown("nodes", facts.nodes)
        return
    ready = [node for node in facts.nodes if _is_schedulable(node)]
    count = f"{len(ready)} of {'the first ' if len(facts.nodes) == MOST_ITEMS else ''}{len(facts.nodes)} nodes"
    if not ready:
        yield findings.problem("nodes", f"{count} are ready", "kubectl get nodes shows which are not, or cordoned")
        return
    yield findings.ok("nodes", f"{count} are ready")
    yield from _devices(facts.nodes, ready)
    yield from _chips(ready)


def _is_schedulable(node: Manifest) -> bool:
    return views.view(node).ready and not (node.get("spec") or {}).get("unschedulable")


def _devices(nodes: Sequence[Manifest], ready: Sequence[Manifest]) -> Iterator[Finding]:
    """What device plugins offer, and those of their devices that are unhealthy."""
    offered: Counter[str] = Counter()
    for node in ready:
        offered.update(_amounts(node, "allocatable"))
    for resource, count in sorted(offered.items()):
        if count:
            yield findings.ok("devices", f"{count} {resource}")
    lost = {name(node): sick for node in nodes if (sick := _unhealthy(node))}
    if lost:
        some = readable.listed([f"{node} ({', '.join(sick)})" for node, sick in lost.items()])
        remedy = "look at the device plugin's log there, and at npu-smi or nvidia-smi"
        yield findings.warning("devices", f"unhealthy devices on {some}", remedy)
    if not any(offered[resource] for resource in (*ASCEND, *GPU)):
        remedy = "install the vendor's device plugin for jobs with device.type Ascend or GPU, or name its resource"
        yield findings.warning("devices", f"no node offers {', '.join((*ASCEND, *GPU))}: only CPU jobs run", remedy)


def _unhealthy(node: Manifest) -> list[str]:
    """Resources of which a node has more than it can give to pods."""
    have, give = _amounts(node, "capacity"), _amounts(node, "allocatable")
    return [f"{count - give.get(resource, 0)} {resource}" for resource, count in have.items() if count > give[resource]]


def _amounts(node: Manifest, what: str) -> Counter[str]:
    amounts = (node.get("status") or {}).get(what) or {}
    return Counter(
        {key: int(text) for key, text in amounts.items() if key.startswith(_VENDORS) and str(text).isdecimal()}
    )


def _chips(ready: Sequence[Manifest]) -> Iterator[Finding]:
    """Rank tables follow a chip's rules, which the labels of its node tell."""
    ascend = [node for node in ready if any(_amounts(node, "allocatable")[resource] for resource in ASCEND)]
    if not ascend:
        return
    unnamed = [name(node) for node in ascend if views.view(node).chip is None]
    chips = Counter(chip for node in ascend if (chip := views.view(node).chip) is not None)
    if unnamed:
        keys = f"{views.LABEL_ACCELERATOR} and {views.LABEL_ACCELERATOR_TYPE}"
        remedy = (
            f"label them as Huawei's device plugin asks, or set device.chip; else {devices.DEFAULT_CHIP} is assumed"
        )
        yield findings.warning("chips", f"the labels {keys} of {readable.listed(unnamed)} name no chip", remedy)
    if chips:
        yield findings.ok(
            "chips", ", ".join(f"{chip} on {readable.plural(count, 'node')}" for chip, count in sorted(chips.items()))
        )
