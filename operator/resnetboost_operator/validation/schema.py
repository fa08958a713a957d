"""Checks and defaults a job object by its schema, with the same result as the API server.

The schema is that of the structs in resnetboost_api; there is no default, range or rule here.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from resnetboost_api import crd, names, structure, wording
from resnetboost_api.job import ResNetBoostJob
from resnetboost_api.structure import Problem, Structure
from resnetboost_api.wording import Schema

__all__ = ["Problem", "check", "check_status", "defaulted", "openapi"]

_LABEL_KEY = re.compile(
    r"(?P<prefix>[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
_MANY = 100  # problems of structure, above which rules add nothing and take long
_KEY_RULE = "use letters, digits, '-', '_' and '.', after a domain and '/' if need be"
_TEXT = {"type": "string"}
_ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_LABEL_VALUE = {
    "type": "string",
    "maxLength": 63,
    "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    "title": "letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
}
# Kubernetes' ObjectMeta, of which a CRD may restrict the name only.
_METADATA: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "title": "a name for the job"},
        "namespace": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "title": "a-z, 0-9 and '-', starting and ending with a letter or digit",
        },
        "labels": {"type": "object", "additionalProperties": _LABEL_VALUE},
        "annotations": {"type": "object", "additionalProperties": _TEXT},
        "finalizers": {"type": "array", "items": _TEXT},
        "generateName": _TEXT,
        "uid": _TEXT,
        "resourceVersion": _TEXT,
        "generation": {"type": "integer"},
        **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"), _ANY),
        **dict.fromkeys(("ownerReferences", "managedFields", "selfLink"), _ANY),
    },
}


@functools.cache
def openapi() -> Schema:
    """The OpenAPI schema of a whole ResNetBoostJob, as the CRD has it."""
    return crd.schema(ResNetBoostJob)


def check(obj: Any, old: Any = None) -> list[Problem]:
    """All problems for which the API server would refuse the object, as a new one or as an update of `old`.

    Ignores the status, as the API server drops it from a user's object. Never raises.
    """
    if not isinstance(obj, dict):
        message = f"a job is a mapping with apiVersion, kind, metadata and spec, not {wording.shown(obj)}"
        return [Problem("", obj, message)]
    found = list(_type_problems(obj))
    if found:
        return found  # an object of another kind: further problems would not help
    job = _without_status(defaulted(obj))
    found = [*_structure().problems(job), *_key_problems(job.get("metadata"))]
    if len(found) > _MANY:
        return found
    from resnetboost_operator.validation import cel  # the evaluator takes a third of a second to load

    before = cel.ABSENT if old is None else _without_status(defaulted(old))
    return [*found, *cel.problems(job, before, openapi(), found)]


def check_status(status: Any) -> list[Problem]:
    """All problems for which the API server would refuse the object as the `.status` of a job."""
    schema = openapi()["properties"]["status"]
    return list(Structure(schema).problems(_pruned(status, schema), "status"))


def defaulted(obj: Any) -> dict[str, Any]:
    """A copy with the CRD's defaults, without nulls, and with 1.0 as 1 where an integer is required."""
    schema = _structure().schema
    return structure.filled(_pruned(obj, schema), schema)  # type: ignore[no-any-return]


@functools.cache
def _structure() -> Structure:
    properties = {**openapi()["properties"], "metadata": _METADATA}
    return Structure({**openapi(), "properties": properties, "required": ["metadata", "spec"]})


def _without_status(obj: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in obj.items() if name != "status"}


def _type_problems(obj: Mapping[str, Any]) -> Iterator[Problem]:
    for name, right in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        value = obj.get(name)
        if value != right:
            message = f"{wording.shown(value)} is not supported" if value is not None else "is missing"
            yield Problem(name, value, f"{message}; use {right}")


def _key_problems(metadata: Any) -> Iterator[Problem]:
    """Labels and annotations whose key Kubernetes refuses."""
    for kind in ("labels", "annotations"):
        given = metadata.get(kind) if isinstance(metadata, dict) else None
        for name in given if isinstance(given, dict) else ():
            if not _is_label_key(name):
                field = f"metadata.{kind}{wording.key(name)}"
                yield Problem(field, name, f"{wording.shown(name)} does not fit as a key; {_KEY_RULE}")


def _is_label_key(name: Any) -> bool:
    match = _LABEL_KEY.fullmatch(name) if isinstance(name, str) else None
    return match is not None and len(match["prefix"] or "") <= 254  # a DNS name and the slash


def _pruned(value: Any, schema: Schema | None) -> Any:
    """A copy without the nulls that have no default, as the API server drops them first."""
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if item is not None or _keeps_null(schema, name)}
        return {name: _pruned(item, structure.part(schema, name)) for name, item in kept.items()}
    if isinstance(value, list | tuple):  # msgspec leaves the tuples of structs as they are
        return [_pruned(item, schema.get("items") if schema else None) for item in value]
    return value


def _keeps_null(schema: Schema | None, name: Any) -> bool:
    inner = structure.part(schema, name)
    return inner is None or "default" in inner
