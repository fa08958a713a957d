"""Sets the device and the execution mode of this process, once, before MindSpore is used."""

import gc

import mindspore

from resnetboost_trainer.failures import ConfigError


def prepare(kind: str = "CPU", jit_level: str | None = None) -> None:
    """Compiled graphs on a CPU, Ascend or GPU: MindSpore's default, operator by operator, takes ten times as long.

    A pod sees one device, so it takes the first. At the level O1 neighbouring operators are fused, which on CPUs needs
    an LLVM that MindSpore's packages come without; with no level MindSpore chooses.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device(kind)
    if jit_level is not None:
        mindspore.set_context(jit_config={"jit_level": jit_level})
    if jit_level == "O1" and kind == "GPU":  # there the level alone fuses nothing (graph_kernel_flags.cc)
        mindspore.set_context(enable_graph_kernel=True)
    # MindSpore collects garbage before it compiles a graph. Without its own objects that is a third of the work.
    gc.freeze()


def choose(kind: str) -> None:
    """Prepare the device that a command's `--device` names. Raises ConfigError where it cannot be used."""
    try:
        prepare(kind)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition(". ")[0].splitlines()[0]
        raise ConfigError(f"--device: {kind} cannot be used here: {reason}; use CPU, or that device's image") from error
