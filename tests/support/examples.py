"""Number of Hypothesis examples per property: as the test says, or a fifth of it in `make test-fast`."""

import hypothesis

ALL, QUICK = "all", "quick"
_USUAL = 100


def register() -> None:
    """Register the Hypothesis profiles; use all examples unless --hypothesis-profile is given. No deadlines."""
    health = [hypothesis.HealthCheck.too_slow]
    for name, count in ((ALL, _USUAL), (QUICK, _USUAL // 5)):
        hypothesis.settings.register_profile(name, deadline=None, suppress_health_check=health, max_examples=count)
    hypothesis.settings.load_profile(ALL)


def examples(count: int) -> hypothesis.settings:
    """Decorator that sets a property's number of examples."""
    return hypothesis.settings(max_examples=max(1, count * hypothesis.settings().max_examples // _USUAL))
