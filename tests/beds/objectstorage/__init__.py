"""A real S3 gateway on this machine (versitygw), whose buckets are folders that tests may look into."""

from beds.objectstorage.gateway import Gateway

__all__ = ["Gateway"]
