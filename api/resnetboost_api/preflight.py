"""The preflight: what devices and connections must give before an attempt begins to train."""

from typing import Annotated, Literal

from msgspec import Meta

from resnetboost_api.fields import Block

PreflightAction = Literal["Report", "Exclude"]
Share = Annotated[float, Meta(gt=0, le=1)]


class Preflight(Block, frozen=True, kw_only=True):
    """A measurement of every device and of the connections between them, by the gang itself, before the first step of
    an attempt with new pods. A rank that is slower than the others, or computes something else than they do, is named.
    """

    seconds: Annotated[int, Meta(ge=5, le=600)] = 30
    """Seconds that the preflight takes at most; most gangs need a few. A measurement that has begun is finished."""
    compute_below: Share = 0.8
    """A rank is slow that computes at less than this share of the gang's median rate, above 0 to 1."""
    collective_below: Share = 0.7
    """A rank is slow whose best all-reduce with a neighbour, or whose node's, is at less than this share of the gang's
    median rate, above 0 to 1.
    """
    action: PreflightAction = "Report"
    """What follows for a rank that is named. Report: an event and status.preflight say so, and the training begins.
    Exclude: the attempt ends, and the next ones avoid the rank's node for a while.
    """
