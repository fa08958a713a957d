"""Definition: whether the cluster knows ResNetBoostJobs, and the same fields of them as this version."""

from collections.abc import Iterator, Mapping
from typing import Any

from resnetboost_api import crd, findings, names
from resnetboost_api.findings import Finding
from resnetboost_operator import __version__, readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Unknown, unknown

CHECK = "definition"
_INSTALL = "helm install resnetboost charts/resnetboost, or kubectl apply -f crds/"


def check(facts: Facts) -> Iterator[Finding]:
    """Compare the fields that the server knows with ours."""
    if isinstance(facts.schema, Unknown):
        yield from unknown(CHECK, facts.schema)
        return
    served = _kind(facts.schema) if facts.schema is not None else None
    if served is None:
        yield findings.problem(CHECK, f"the cluster does not know {names.API_VERSION} {names.KIND}", _INSTALL)
        return
    ours, theirs = set(_paths(_own(), "")), set(_paths(served, ""))
    missing = sorted(path for path in ours - theirs if path.startswith((".spec", ".status")))
    extra = sorted(path for path in theirs - ours if path.startswith((".spec", ".status")))
    if missing:
        message = f"it lacks {readable.listed([path[1:] for path in _tops(missing)])} of version {__version__}"
        yield findings.problem(CHECK, message, "upgrade the chart, which brings the definition: helm upgrade")
    elif extra:
        message = f"it has {readable.listed([path[1:] for path in _tops(extra)])}, which version {__version__} has not"
        yield findings.warning(CHECK, message, "this command is older than the cluster's: update it")
    else:
        yield findings.ok(CHECK, f"{names.API_VERSION}, the same fields as version {__version__}")


def _kind(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of our kind in an OpenAPI document."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    wanted = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    return next(
        (found for found in schemas.values() if wanted in (found.get("x-kubernetes-group-version-kind") or ())), None
    )


def _own() -> Mapping[str, Any]:
    (version,) = crd.definition()["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def _paths(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """The paths of all fields of a schema, such as .spec.stages[].epochs."""
    for name, inner in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _paths(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _paths(schema["items"], f"{path}[]")


def _tops(paths: list[str]) -> list[str]:
    """Those that are not inside of another one."""
    return [path for path in paths if not any(path != top and path.startswith((f"{top}.", f"{top}[")) for top in paths)]
