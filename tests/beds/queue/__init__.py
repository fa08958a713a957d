"""A stand-in for Kueue: stubs of its CRDs, and a controller that makes its writes for the Workloads of a namespace.

No release of Kueue runs here. The writes are those that a real Kueue answered with once, in a laboratory.
"""

from beds.queue.controller import Kueue
from beds.queue.decisions import Queue

__all__ = ["Kueue", "Queue"]
