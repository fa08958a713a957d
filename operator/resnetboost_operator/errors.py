"""Errors that a user can cause and fix: one sentence and the exit code of the command line."""

from resnetboost_api import failures

_CODES = {verdict.name: verdict.exit_code for verdict in failures.ALL}


class UserError(Exception):
    """The problem and its remedy, in one sentence."""

    exit_code = _CODES["ConfigError"] or 1


class StorageError(UserError):
    """A file or folder of the run cannot be read or written."""

    exit_code = _CODES["StorageError"] or 1


class AddressError(UserError):
    """No free address for a pod on this machine."""

    exit_code = _CODES["CommunicationError"] or 1


def storage_error(error: OSError) -> StorageError:
    """The operating system's error as a sentence."""
    path = f" {error.filename}" if error.filename else ""
    reason = error.strerror or str(error)
    return StorageError(f"cannot use{path}: {reason}; choose another folder with --out, or make room there")
