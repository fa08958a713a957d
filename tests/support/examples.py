"""Number of Hypothesis examples per property: as the test says, or a fifth of it in `make test-fast`."""

import hypothesis

ALL, QUICK = "all", "quick"
_USUAL = 100


def register() -> None:
    """Make the profiles known and use all examples, unless --hypothesis-profile says otherwise. Nothing is timed."""
    health = [hypothesis.HealthCheck.too_slow]
    for name, count in ((ALL, _USUAL), (QUICK, _USUAL // 5)):
        hypothesis.settings.register_profile(name, deadline=None, suppress_health_check=health, max_examples=count)
    hypothesis.settings.load_profile(ALL)


def examples(count: int) -> hypothesis.settings:
    """A decorator for a property that is to be tried with this many examples."""
    return hypothesis.settings(max_examples=max(1, count * hypothesis.settings().max_examples // _USUAL))
