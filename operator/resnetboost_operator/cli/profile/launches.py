"""Computes what launching operators costs: the time of a part of a step in which none of its operators runs."""

from collections.abc import Iterator

import msgspec

from resnetboost_api.profile import Times


class Launches(msgspec.Struct, frozen=True):
    """Launches in a part of a step, or in all of them: how many in a step, and the seconds outside operators."""

    part: str
    count: float
    seconds: float

    @property
    def each(self) -> float:
        """Seconds outside operators for each launch."""
        return self.seconds / self.count


def by_part(times: Times) -> Iterator[Launches]:
    """The launches of each part whose operators were recorded."""
    for part in times.parts:
        count = sum(operator.calls for operator in times.operators if operator.part == part.name)
        if part.in_operators is not None and count:
            yield Launches(part.name, count, part.seconds.mean * max(0.0, 1 - part.in_operators))


def together(times: Times) -> Launches | None:
    """The launches of a whole step; None if no operator was recorded."""
    found = list(by_part(times))
    if not found:
        return None
    return Launches("all parts", sum(part.count for part in found), sum(part.seconds for part in found))
