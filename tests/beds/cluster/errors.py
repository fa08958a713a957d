"""The test bed's only exception, because no caller distinguishes causes."""


class ClusterError(Exception):
    """The test bed cannot do what it was asked to; the text says why, and what helps."""
