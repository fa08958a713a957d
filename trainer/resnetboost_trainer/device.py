"""Chooses the device and the execution mode of this process, once, before anything else of MindSpore is used."""

import gc

import mindspore


def prepare(kind: str = "CPU") -> None:
    """Compiled graphs on a CPU, Ascend or GPU: MindSpore's default, operator by operator, takes ten times as long.

    A pod sees one device, so it takes the first.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device(kind)
    # MindSpore collects garbage before it compiles a graph. Without its own objects that is a third of the work.
    gc.freeze()
