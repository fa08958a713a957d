"""Makes the CustomResourceDefinition, and the OpenAPI schema of any struct of the API, from the structs alone."""

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from resnetboost_api import names
from resnetboost_api.columns import COLUMNS
from resnetboost_api.fields import Block, Reported, as_schema
from resnetboost_api.job import ResNetBoostJob

__all__ = ["definition", "schema"]

Schema = dict[str, Any]
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean"}
# What comes where in each part of the schema.
_ORDER = (
    "description",
    "type",
    "format",
    "x-kubernetes-int-or-string",
    "enum",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "title",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "default",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "properties",
    "items",
    "additionalProperties",
)

# What `kubectl scale` and autoscalers read and write.
SCALE = {
    "specReplicasPath": ".spec.device.count",
    "statusReplicasPath": ".status.ranks.desired",
    "labelSelectorPath": ".status.selector",
}


def definition() -> Schema:
    """The CustomResourceDefinition of ResNetBoostJobs, to be applied as it is."""
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": SCALE},
        "additionalPrinterColumns": [msgspec.to_builtins(column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": schema(ResNetBoostJob)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": ["rbj"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def schema(kind: type[Block | Reported]) -> Schema:
    """The OpenAPI schema of a struct, as Kubernetes wants it: structural, without references."""
    fields = {field.encode_name: field for field in _fields(kind)}
    required = [name for name, field in fields.items() if field.required]
    if issubclass(kind, Reported) and kind.REQUIRED is not None:
        required = list(kind.REQUIRED)
    found = {
        "description": _first_paragraph(kind.__doc__ or ""),
        "type": "object",
        "required": required,
        "x-kubernetes-validations": [as_schema(rule) for rule in kind.RULES],
        "properties": {name: _property(kind, field) for name, field in fields.items()},
    }
    return _ordered({name: part for name, part in found.items() if part})


def _fields(kind: type[Block | Reported]) -> Iterator[msgspec.structs.FieldInfo]:
    """A struct's fields; `name`, if it has one of its own beside those of a base, comes first."""
    yield from sorted(msgspec.structs.fields(kind), key=lambda field: field.name != "name")


def _property(kind: type[Block | Reported], field: msgspec.structs.FieldInfo) -> Schema:
    found = dict(_default(field)) if issubclass(kind, Block) else {}
    described = _descriptions(kind).get(field.name)
    found |= {"description": described} if described else {}
    found = _of(field.type) | found
    return _ordered({name: part for name, part in {**found, **_extra(field.type)}.items() if part is not None})


def _default(field: msgspec.structs.FieldInfo) -> Iterator[tuple[str, Any]]:
    """What the API server fills in: `{}` for a block, whose fields have defaults of their own."""
    if field.required:
        return
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, msgspec.Struct):
        if default != type(default)():
            raise TypeError(f"{field.name}: the default of a block must be the one of its fields, not {default}")
        yield "default", {}
    elif default is not None:
        yield "default", _plain(list(default) if isinstance(default, tuple) else default)


def _of(annotation: Any) -> Schema:
    """The schema of a type, with the bounds that it is annotated with."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        found = _of(arguments[0])
        for meta in arguments[1:]:
            found |= _bounds(meta, found.get("type", ""))
        return found
    if origin in (types.UnionType, typing.Union):
        return _either([part for part in arguments if part is not types.NoneType])
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _complete(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _complete(arguments[1])}
    if issubclass(annotation, msgspec.Struct):
        return schema(annotation)
    return {"type": _SCALARS[annotation]}


def _either(parts: list[Any]) -> Schema:
    """One type, or a whole number or text."""
    if len(parts) == 1:
        return _of(parts[0])
    found = functools.reduce(lambda one, other: one | other, map(_of, parts))
    return {name: part for name, part in found.items() if name != "type"} | {"x-kubernetes-int-or-string": True}


def _complete(annotation: Any) -> Schema:
    return _ordered({name: part for name, part in (_of(annotation) | _extra(annotation)).items() if part is not None})


def _bounds(meta: Meta, kind: str) -> Schema:
    length = {"array": "Items", "object": "Properties"}.get(kind, "Length")
    given = {
        "minimum": meta.ge if meta.gt is None else meta.gt,
        "exclusiveMinimum": None if meta.gt is None else True,
        "maximum": meta.le if meta.lt is None else meta.lt,
        "exclusiveMaximum": None if meta.lt is None else True,
        f"min{length}": meta.min_length,
        f"max{length}": meta.max_length,
        "pattern": meta.pattern,
        "title": meta.title,
        "description": meta.description,
    }
    return {name: _plain(part) for name, part in given.items() if part is not None}


def _extra(annotation: Any) -> Schema:
    """What a type has for the CRD alone; None takes something out of it."""
    found: Schema = {}
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        for part in typing.get_args(annotation):
            found |= _extra(part)
    for meta in getattr(annotation, "__metadata__", ()):
        found |= meta.extra_json_schema or {}
    return found


def _plain(value: Any) -> Any:
    """Write 1.0 as 1, as Kubernetes does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _ordered(node: Schema) -> Schema:
    return dict(sorted(node.items(), key=lambda item: _ORDER.index(item[0])))


@functools.cache
def _descriptions(kind: type) -> dict[str, str]:
    """The text below each field of a struct, and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _class_texts(base.__module__).get(base.__qualname__, {})
    return found


@functools.cache
def _class_texts(module: str) -> dict[str, dict[str, str]]:
    """By class and field, from the module's source: Python drops the text below a field."""
    if not module.startswith(__package__):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_field_texts(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, " ".join(ast.literal_eval(text.value).split())


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
