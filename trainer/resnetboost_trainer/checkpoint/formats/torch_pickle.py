"""Safe reader for the pickle of a torch.save file, limited to state dicts; imports and calls nothing from it.

The file is untrusted, so Python's unpickler is not used: `pickletools` decodes the opcodes, and a small stack machine
executes the few that torch.save writes for dicts of tensors. Globals stay names; only those in `REBUILDERS`, `STORAGES`
and OrderedDict are accepted.
"""

import pickletools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

# NumPy types of torch's storages; BFloat16 is read as its bits.
STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
REBUILDERS = ("_rebuild_tensor_v2", "_rebuild_parameter")
# Far more than a state dict needs: ResNet-152's takes 50 thousand.
MAX_OPCODES = 2_000_000
MAX_DIMENSIONS = 8

REMEDY = "save the weights alone with torch.save(model.state_dict(), file), or as safetensors"


class Refused(Exception):
    """A file is refused; the message is one sentence without the file's name."""


def shown(text: str, most: int = 100) -> str:
    """Make untrusted text from a file safe to print: truncate it and escape control characters."""
    text = text[:most]
    return text if text.isascii() and text.isprintable() else ascii(text)


class Global(NamedTuple):
    """A global named in a pickle; it is never imported."""

    module: str
    name: str


class Storage(NamedTuple):
    """A tensor storage, which is an entry of the archive: its key, number of elements and type (a key of STORAGES)."""

    key: str
    numbers: int
    kind: str


class Lazy(NamedTuple):
    """A tensor not read yet: storage, offset, shape and strides in elements, checked to lie within the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Mark(NamedTuple):
    """Marks the start of a sequence on the stack."""


MARK = Mark()


def load(data: bytes) -> Any:
    """Unpickle dicts, lists, tuples, strings and numbers, with tensors as `Lazy`. Raises Refused."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise Refused(f"its pickle has more than {MAX_OPCODES} opcodes; {REMEDY}")
            machine.do(opcode.name, argument)
        return machine.result()
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Refused(f"its pickle is damaged: {' '.join(str(error).split()) or type(error).__name__}") from error


class _Machine:
    """Stack machine of a pickle. Raises IndexError, KeyError, TypeError or ValueError for an invalid pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        (value,) = self.stack
        return value

    def do(self, opcode: str, argument: Any) -> None:
        """Execute one opcode. Raises Refused for an unsupported one."""
        if opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _ARGUMENTS:
            self.stack.append(argument)
        elif opcode in _MAKERS:
            self.stack.append(_MAKERS[opcode]())
        elif opcode in _ACTS:
            _ACTS[opcode](self, argument)
        else:
            raise Refused(f"its pickle uses {opcode}, which no state dict needs; {REMEDY}")

    def nothing(self, _: Any) -> None:
        """PROTO, FRAME and STOP have no effect."""

    def put(self, place: Any) -> None:
        self.memo[int(place)] = self.stack[-1]

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, place: Any) -> None:
        self.stack.append(self.memo[int(place)])

    def global_(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(_known(Global(module, name)))

    def stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a global without a name")
        self.stack.append(_known(Global(module, name)))

    def tuple_(self, _: Any) -> None:
        self.stack.append(tuple(self.popped()))

    def last(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError("a tuple of more than there is")
        del self.stack[-count:]
        self.stack.append(items)

    def append(self, _: Any) -> None:
        item = self.stack.pop()
        _list(self.stack[-1]).append(item)

    def appends(self, _: Any) -> None:
        items = self.popped()
        _list(self.stack[-1]).extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _dict(self.stack[-1])[_key(key)] = value

    def set_items(self, _: Any) -> None:
        items = self.popped()
        if len(items) % 2:
            raise ValueError("a key without a value")
        _dict(self.stack[-1]).update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def persistent(self, _: Any) -> None:
        self.stack.append(_storage(self.stack.pop()))

    def reduce(self, _: Any) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        self.stack.append(_made(called, arguments))

    def build(self, _: Any) -> None:
        """Drop an object's attributes: torch writes `_metadata` for an OrderedDict, which is not needed."""
        self.stack.pop()
        _dict(self.stack[-1])

    def popped(self) -> list[Any]:
        """Pop the items above the last mark, and the mark."""
        place = len(self.stack) - 1
        while not isinstance(self.stack[place], Mark):
            place -= 1
            if place < 0:
                raise IndexError("no mark on the stack")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": MARK}
_ARGUMENTS = (
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "SHORT_BINBYTES",
)
_MAKERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_ACTS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.nothing,
    "FRAME": _Machine.nothing,
    "STOP": _Machine.nothing,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "TUPLE": _Machine.tuple_,
    "TUPLE1": lambda machine, _: machine.last(1),
    "TUPLE2": lambda machine, _: machine.last(2),
    "TUPLE3": lambda machine, _: machine.last(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


def _known(found: Global) -> Global:
    """Return the global if state dicts use it. Raises Refused for any other."""
    storage = found.module == "torch" and found.name in STORAGES
    rebuilder = found.module == "torch._utils" and found.name in REBUILDERS
    if storage or rebuilder or found == Global("collections", "OrderedDict"):
        return found
    name = f"{found.module}.{found.name}"
    raise Refused(f"its pickle names {shown(name)}, which no state dict needs; {REMEDY}")


def _made(called: Any, arguments: Any) -> Any:
    """Return the result of a REDUCE opcode: a tensor's description for torch's rebuilders, or an empty dict."""
    if not isinstance(called, Global) or not isinstance(arguments, tuple):
        raise TypeError("it calls what is no function")
    if called.name == "OrderedDict":
        if arguments:
            raise ValueError("an OrderedDict with contents of its own")
        return {}
    if called.name == "_rebuild_parameter":
        if not isinstance(arguments[0], Lazy):
            raise TypeError("a parameter of no tensor")
        return arguments[0]
    if called.name == "_rebuild_tensor_v2":
        return _tensor(*arguments[:4])
    raise TypeError(f"it calls {called.module}.{called.name}")


def _storage(identifier: Any) -> Storage:
    """Parse torch's persistent id: ("storage", type, key, device, number of elements)."""
    match identifier:
        case ("storage", Global("torch", kind), str(key), str(), int(count)) if kind in STORAGES:
            if not (key.isascii() and key.isdigit() and len(key) <= 8):
                raise Refused(f"a storage has the key {key[:40]!r} instead of a number")
            return Storage(key, _natural(count), kind)
    raise ValueError("an object outside of the pickle that is no storage of numbers")


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Lazy:
    """Describe a tensor. Raises Refused if it reaches outside its storage or has more elements."""
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise TypeError("a tensor of no storage")
    tensor = Lazy(storage, _natural(offset), tuple(map(_natural, shape)), tuple(map(_natural, strides)))
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > MAX_DIMENSIONS:
        raise Refused(f"a tensor has {len(tensor.shape)} dimensions and {len(tensor.strides)} strides")
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((extent - 1) * stride for extent, stride in pairs)
    if size(tensor) > storage.numbers or (size(tensor) and last >= storage.numbers):
        raise Refused(f"a tensor of shape {tensor.shape} does not lie within its storage of {storage.numbers} numbers")
    return tensor


def size(tensor: Lazy) -> int:
    """Return the tensor's number of elements."""
    product = 1
    for extent in tensor.shape:
        product *= extent
    return product


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        # Do not print the value: nested tuples may be arbitrarily long.
        kind = "negative" if type(value) is int else f"a {type(value).__name__}"
        raise Refused(f"a size, offset or stride is {kind} instead of a whole number from 0 on")
    return int(value)


def _key(key: Any) -> Hashable:
    """Return the key if it is a string or an integer, which are cheap to hash. Raises Refused."""
    if not isinstance(key, str | int):
        raise Refused(f"a dict has a {type(key).__name__} as key; {REMEDY}")
    return key


def _dict(value: Any) -> dict[Hashable, Any]:
    if not isinstance(value, dict):
        raise TypeError("items for what is no dict")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("items for what is no list")
    return value


def dtype(storage: Storage) -> np.dtype[Any]:
    """Return the NumPy type of a storage's elements in the archive."""
    return np.dtype(STORAGES[storage.kind])
