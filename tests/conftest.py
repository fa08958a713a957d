"""Fixtures that tests of several folders share."""

pytest_plugins = ["cluster.fixtures"]
