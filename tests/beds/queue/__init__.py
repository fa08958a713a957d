"""Queues and gang schedulers that no test bed can build from source: hand-written definitions of their kinds.

`Kueue` also plays its controller for a namespace. No release of Kueue runs here: the writes are those that a real Kueue
answered with once, in a laboratory.
"""

from beds.queue.controller import Kueue
from beds.queue.decisions import Queue
from beds.queue.kinds import COSCHEDULING, KUEUE, VOLCANO, served

__all__ = ["COSCHEDULING", "KUEUE", "VOLCANO", "Kueue", "Queue", "served"]
