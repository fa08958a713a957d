"""Makes a primitive of MindSpore from a C++ operator; it knows nothing of what the operator computes.

MindSpore (2.10) keeps what it has once found out about a primitive - the shapes of its results in PyNative mode, its
gradient in graphs - by the primitive's name and attributes. The Python functions that it asked are no part of that key:
of two primitives that differ in nothing else, the second gets the shapes and the gradient of the first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import ops

Function = Callable[..., Any]


def primitive(
    library: Path, name: str, shapes: Function, types: Function, bprop: Function | None = None, **depends_on: int
) -> ops.Custom:
    """The operator of that name; `shapes` and `types` infer its results, `bprop` is its gradient.

    `depends_on` names every value from outside that the functions use, and makes an attribute of it.
    """
    made = ops.Custom(f"{library}:{name}", shapes, types, func_type="aot", bprop=bprop)
    for attribute, value in depends_on.items():
        made.add_prim_attr(attribute, value)
    return made
