"""What tests of several folders share: fixtures, who runs what where, and that no property is a timed test."""

import hypothesis

pytest_plugins = ["cluster.fixtures", "sidebyside"]

hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
