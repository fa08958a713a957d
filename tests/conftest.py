"""What tests of several folders share: fixtures, who runs what where, and that no property is a timed test."""

import signal

import hypothesis

pytest_plugins = ["beds.cluster.fixtures", "support.sidebyside", "support.summary"]

hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

# Who starts tests in a shell's background has them ignore Ctrl-C, and so would the programs they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
