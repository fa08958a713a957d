"""Sets the device and the execution mode of this process, once, before MindSpore is used."""

import gc

import mindspore

from resnetboost_trainer.failures import ConfigError


def prepare(kind: str = "CPU", jit_level: str | None = None) -> None:
    """Use compiled graphs on the first CPU, Ascend or GPU device.

    MindSpore's default, operator by operator, takes ten times as long. Level O1 fuses neighbouring operators, which on
    CPUs needs an LLVM that MindSpore's packages lack; without a level MindSpore chooses.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device(kind)
    if jit_level is not None:
        mindspore.set_context(jit_config={"jit_level": jit_level})
    if jit_level == "O1" and kind == "GPU":  # on a GPU the level alone fuses nothing (graph_kernel_flags.cc)
        mindspore.set_context(enable_graph_kernel=True)
    # MindSpore collects garbage before it compiles a graph; without its own objects that takes a third of the time.
    gc.freeze()


def choose(kind: str) -> None:
    """Prepare the device of a command's `--device`. Raises ConfigError if it cannot be used."""
    try:
        prepare(kind)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition(". ")[0].splitlines()[0]
        raise ConfigError(f"--device: {kind} cannot be used here: {reason}; use CPU, or that device's image") from error
