"""Images: whether nodes have the trainers' images already. Nothing is pulled, so whether they could be is not known."""

from collections.abc import Iterator, Sequence

from resnetboost_api import findings
from resnetboost_api.device import DeviceType
from resnetboost_api.findings import Finding
from resnetboost_operator.cli.doctor.cluster import nodes
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Manifest, Unknown, unknown
from resnetboost_operator.manifests import devices

_RESOURCES: dict[DeviceType, tuple[str, ...]] = {"CPU": (), "Ascend": nodes.ASCEND, "GPU": nodes.GPU}
_REGISTRY, _IMAGE = "--image-registry=", "--trainer-image="


def check(facts: Facts) -> Iterator[Finding]:
    """The image of each type of device that nodes offer."""
    if isinstance(facts.nodes, Unknown):
        yield from unknown("images", facts.nodes)
        return
    for kind, resources in _RESOURCES.items():
        fitting = [node for node in facts.nodes if _offers(node, resources)]
        if fitting:
            yield _present(_name(kind, facts.arguments), fitting)


def _offers(node: Manifest, resources: tuple[str, ...]) -> bool:
    amounts = (node.get("status") or {}).get("allocatable") or {}
    return not resources or any(str(amounts.get(resource, "0")) != "0" for resource in resources)


def _name(kind: DeviceType, arguments: Sequence[str]) -> str:
    """The image that the operator takes for jobs which name none."""
    own = f"{_IMAGE}{kind}="
    named = next((word.removeprefix(own) for word in arguments if word.startswith(own)), "")
    registry = next((word.removeprefix(_REGISTRY) for word in arguments if word.startswith(_REGISTRY)), "")
    default = devices.TYPES[kind].image
    return named or (f"{registry.rstrip('/')}/{default}" if registry else default)


def _present(image: str, fitting: list[Manifest]) -> Finding:
    """Kubelet reports its 50 largest images, so a trainer's is among them."""
    having = sum(_has(node, image) for node in fitting)
    found = f"{image} is on {having} of {len(fitting)} nodes"
    if having == len(fitting):
        return findings.ok("images", found)
    registry = image.partition("/")[0]
    if not having and "." not in registry and ":" not in registry and registry != "localhost":
        remedy = "none are published: make images, push them to a registry, and set imageRegistry of the chart"
        return findings.warning("images", f"{found}, and its name has no registry", remedy)
    return findings.warning(
        "images", f"{found}; the others pull it with their first pod", "wait for it, or pull it before"
    )


def _has(node: Manifest, image: str) -> bool:
    """Whether the node reports it; the runtime writes docker.io/ before a name without a registry."""
    images = (node.get("status") or {}).get("images") or ()
    known = {name for found in images for name in found.get("names") or ()}
    return bool(known & {image, f"docker.io/{image}", f"localhost/{image}"})
