"""What tests of several folders share: fixtures, who runs what where, and that no property is a timed test."""

import signal

from support import examples

pytest_plugins = ["beds.cluster.fixtures", "beds.cluster.gangfixtures", "support.sidebyside", "support.summary"]

examples.register()

# Who starts tests in a shell's background has them ignore Ctrl-C, and so would the programs they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
