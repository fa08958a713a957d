"""The test bed's only exception, because no caller distinguishes causes."""


class ClusterError(Exception):
    """An operation of the test bed failed; the text says why, and how to fix it."""
