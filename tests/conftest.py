"""Fixtures and settings for all tests: pytest plugins, distribution over workers, hypothesis without deadlines."""

import signal

from support import examples

pytest_plugins = [
    "beds.cluster.fixtures",
    "beds.cluster.gangfixtures",
    "support.cpu",
    "support.objectstorage",
    "support.operators",
    "support.sidebyside",
    "support.summary",
    "support.tiers",
]

examples.register()

# A shell's background jobs ignore Ctrl-C, and so would programs started by tests that run in one.
signal.signal(signal.SIGINT, signal.default_int_handler)
