"""Errors a user can cause and mend: one clear sentence and the command line's exit code; nothing else."""

from resnetboost_operator import failures

_CODES = {verdict.name: verdict.exit_code for verdict in failures.ALL}


class UserError(Exception):
    """What is wrong and what would be right, in one sentence."""

    exit_code = _CODES["ConfigError"] or 1


class StorageError(UserError):
    """A file or folder of the run cannot be written or read."""

    exit_code = _CODES["StorageError"] or 1


class AddressError(UserError):
    """No pod could listen on this machine."""

    exit_code = _CODES["CommunicationError"] or 1


def storage_error(error: OSError) -> StorageError:
    """The operating system's complaint as a sentence."""
    path = f" {error.filename}" if error.filename else ""
    reason = error.strerror or str(error)
    return StorageError(f"cannot use{path}: {reason}; choose another folder with --out, or make room there")
