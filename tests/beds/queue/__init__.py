"""Kinds of queues and gang schedulers that no test bed can build from source: hand-written definitions of them."""

from beds.queue.kinds import COSCHEDULING, KUEUE, VOLCANO, served

__all__ = ["COSCHEDULING", "KUEUE", "VOLCANO", "served"]
