"""What the test bed can fail with; one exception, because nobody handles its causes apart."""


class ClusterError(Exception):
    """The test bed cannot do what it was asked to; the text says why, and what helps."""
