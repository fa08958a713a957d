"""Packs a rank table into a ConfigMap: as text, or compressed if the text is too large."""

import base64
import gzip

import msgspec

from resnetboost_operator.errors import UserError

__all__ = ["CONFIG_MAP_BYTES", "SUFFIX", "Payload", "TooLarge", "pack", "unpack"]

CONFIG_MAP_BYTES = 1 << 20  # of all values together; the API server counts binary ones before base64
SUFFIX = ".gz"
_LEVEL = 9


class TooLarge(UserError):
    """A table that does not fit even when compressed."""


class Payload(msgspec.Struct, frozen=True):
    """`data` and `binaryData` of a ConfigMap; one of them holds the table."""

    data: dict[str, str]
    binary_data: dict[str, str]


def pack(key: str, content: bytes, *, reserved_bytes: int = 0) -> Payload:
    """The content under `key`, or gzip under `key`.gz; `reserved_bytes` are taken by other keys of the ConfigMap.

    The same content gives the same bytes. Raises TooLarge with the sizes.
    """
    room = CONFIG_MAP_BYTES - reserved_bytes
    if len(content) <= room:
        return Payload({key: content.decode()}, {})
    packed = gzip.compress(content, _LEVEL, mtime=0)
    if len(packed) <= room:
        return Payload({}, {f"{key}{SUFFIX}": base64.b64encode(packed).decode()})
    raise TooLarge(
        f"{key} has {len(content)} bytes, {len(packed)} with gzip, and a ConfigMap has room for {room}; "
        "use fewer devices, or put the table on a shared volume"
    )


def unpack(key: str, payload: Payload) -> bytes:
    """The content again."""
    if key in payload.data:
        return payload.data[key].encode()
    return gzip.decompress(base64.b64decode(payload.binary_data[f"{key}{SUFFIX}"]))
