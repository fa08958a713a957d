"""Storage: where claims for checkpoints can come from."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator import readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Unknown, name, unknown

CHECK = "storage"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def check(facts: Facts) -> Iterator[Finding]:
    """A job without a claim loses its checkpoints with its pods."""
    classes = facts.storage_classes
    if isinstance(classes, Unknown):
        yield from unknown(CHECK, classes)
        return
    default = [name(one) for one in classes if (one["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"]
    if not classes:
        remedy = "create PersistentVolumes for checkpoint.claimName by hand, or install a provisioner"
        yield findings.warning(CHECK, "no StorageClass: no claim is filled by itself", remedy)
    elif not default:
        found = readable.listed([name(one) for one in classes])
        remedy = "name one of them in storageClassName of the claim for checkpoint.claimName"
        yield findings.warning(CHECK, f"no default StorageClass; there are {found}", remedy)
    else:
        yield findings.ok(CHECK, f"claims come from {default[0]} by default; {len(classes)} StorageClasses")
