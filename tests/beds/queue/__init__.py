"""Queues and gang schedulers: hand-written definitions of their kinds, and Kueue.

`Kueue` plays Kueue's controller for a namespace, in any order and with any failure that a test wants, within seconds of
a checkout. `manager.Manager` runs the real one, which takes minutes to build: the tests with it show that the play is
true. Of the gang schedulers none can be built from packages.
"""

from beds.queue.controller import Kueue
from beds.queue.decisions import Queue
from beds.queue.kinds import COSCHEDULING, KUEUE, VOLCANO, served

__all__ = ["COSCHEDULING", "KUEUE", "VOLCANO", "Kueue", "Queue", "served"]
