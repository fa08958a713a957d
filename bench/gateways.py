"""A running S3 gateway (versitygw) on this machine, which this process has the access to."""

import contextlib
import os
from collections.abc import Iterator

from beds.cluster import build
from beds.objectstorage import Gateway


@contextlib.contextmanager
def running() -> Iterator[Gateway]:
    """A gateway with an empty bucket."""
    build.programs(build.OBJECT_STORAGE)
    with Gateway() as gateway:
        os.environ.update(gateway.variables)
        yield gateway
