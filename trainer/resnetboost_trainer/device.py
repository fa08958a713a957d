"""Chooses the device and the execution mode of this process, once, before anything else of MindSpore is used."""

import mindspore


def prepare() -> None:
    """Compiled graphs on the CPU: MindSpore's default, operator by operator, takes ten times as long."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
