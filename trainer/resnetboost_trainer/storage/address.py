"""Addresses in object storage, such as s3://bucket/path."""

import re
from typing import NamedTuple

from resnetboost_trainer.failures import ConfigError

SCHEME = "s3://"
# A bucket's name, as S3's rules have it.
_BUCKET = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
_MOST_CHARACTERS = 1024


class Address(NamedTuple):
    """A bucket and a key in it, or the beginning of keys; the key has no slash at its ends."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def below(self, *parts: str) -> "Address":
        """The address of a key below this one."""
        return Address(self.bucket, "/".join(part for part in (self.key, *parts) if part))


def is_address(text: str) -> bool:
    """True for an address, false for a path of this machine. Of any scheme: a path has no ://."""
    return "://" in text


def parse(text: str, field: str) -> Address:
    """Read an address. Raises ConfigError with the field's name."""
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    parts = key.strip("/").split("/") if key.strip("/") else []
    if not text.startswith(SCHEME) or not _BUCKET.fullmatch(bucket) or len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{field}: {text[:200]!r} is no address in object storage; use one such as s3://bucket/path")
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise ConfigError(f"{field}: {text[:200]!r} has an empty part, '.' or '..' in its path; leave that out")
    return Address(bucket, "/".join(parts))
