"""Creates MindSpore primitives from C++ operators.

MindSpore (2.10) caches a primitive's result shapes (in PyNative mode) and gradient (in graphs) by its name and
attributes. The Python functions that infer them are not part of the key: if two primitives differ only in these, the
second gets the shapes and the gradient of the first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import ops

Function = Callable[..., Any]


def primitive(
    library: Path, name: str, shapes: Function, types: Function, bprop: Function | None = None, **depends_on: int | str
) -> ops.Custom:
    """Create the primitive of operator `name`; `shapes` and `types` infer its results, `bprop` is its gradient.

    `depends_on` must name every captured value that the functions use; each becomes an attribute.
    """
    made = ops.Custom(f"{library}:{name}", shapes, types, func_type="aot", bprop=bprop)
    for attribute, value in depends_on.items():
        made.add_prim_attr(attribute, value)
    return made
