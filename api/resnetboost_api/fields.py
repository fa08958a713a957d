"""Building blocks of the schema: base structs, rules, and types that several structs share.

A struct's docstring (its first paragraph) and the string below a field are their descriptions in the CRD.
"""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

__all__ = [
    "ATOMIC",
    "NO_DEFAULT",
    "Block",
    "LabelKey",
    "LabelValue",
    "ObjectName",
    "Quantity",
    "Reported",
    "Rule",
    "Seed",
    "StageName",
    "Time",
    "VolumeName",
    "keyed",
    "rules",
]


class Rule(msgspec.Struct, frozen=True):
    """A CEL rule (x-kubernetes-validations). Line breaks in its texts count as spaces.

    `message_expression` is a CEL expression for a message with the values; `message` is shown where it fails.
    """

    rule: str
    message: str
    field_path: str = ""
    reason: str = ""
    message_expression: str = ""


class Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what a user writes: snake_case here, camelCase in the object.

    The CRD has a struct's defaults, so that the API server fills them in.
    """

    RULES: ClassVar[tuple[Rule, ...]] = ()


class Reported(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what the operator writes. Defaults are for its readers alone: the API server fills in none.

    `REQUIRED` are the fields that the API server insists on, where they are not all those without a default.
    """

    REQUIRED: ClassVar[tuple[str, ...] | None] = None
    RULES: ClassVar[tuple[Rule, ...]] = ()


def rules(*given: Rule) -> dict[str, Any]:
    """Rules of a field that is no struct, as `extra_json_schema`."""
    return {"x-kubernetes-validations": [as_schema(rule) for rule in given]}


def as_schema(rule: Rule) -> dict[str, str]:
    """The rule as it stands in the CRD."""
    found = {
        "rule": rule.rule,
        "fieldPath": rule.field_path,
        "reason": rule.reason,
        "message": rule.message,
        "messageExpression": rule.message_expression,
    }
    return {name: " ".join(text.split()) for name, text in found.items() if text}


def keyed(*names: str) -> dict[str, Any]:
    """A list keyed by these fields of its items, as `extra_json_schema`. Each is required or has a default."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(names)}


# A list that is replaced as a whole.
ATOMIC = {"x-kubernetes-list-type": "atomic"}
# A default for readers alone: the API server fills in nothing, so that rules see whether the field was given.
NO_DEFAULT = {"default": None}

StageName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=20,
        pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$",
        title="a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
]
ObjectName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        title="a-z, 0-9, '-' and '.', each part starting and ending with a letter or digit",
    ),
]
VolumeName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        title="a-z, 0-9 and '-', starting and ending with a letter or digit",
    ),
]
LabelKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=317,
        pattern="^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$",
        title="a label key such as example.com/dedicated",
    ),
]
LabelValue = Annotated[
    str,
    Meta(
        max_length=63,
        pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        title="letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
    ),
]
Quantity = (
    Annotated[int, Meta(ge=0)]
    | Annotated[
        str,
        Meta(
            max_length=32,
            pattern=r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
        ),
    ]
)
Seed = Annotated[
    int,
    Meta(
        ge=0,
        le=2147483647,
        extra_json_schema=rules(
            Rule("self == oldSelf", "seed cannot change once the job exists; delete the job and apply it again")
        ),
    ),
]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
