"""Fixtures and settings for all tests: pytest plugins, distribution over workers, hypothesis without deadlines."""

import signal

from support import examples

pytest_plugins = ["beds.cluster.fixtures", "support.sidebyside", "support.summary"]

examples.register()

# Who starts tests in a shell's background has them ignore Ctrl-C, and so would the programs they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
