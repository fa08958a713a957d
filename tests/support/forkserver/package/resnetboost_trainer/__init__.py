"""Shadows the trainer for `python -m resnetboost_trainer...`: passes the same command to the fork server."""

import runpy
import sys
from pathlib import Path

_STAND_IN = Path(__file__).parents[2] / "stand_in.py"

if "-m" not in sys.orig_argv:
    raise ImportError("the tests' fork server stands before the trainer, which can only be run here: python -m ...")
runpy.run_path(str(_STAND_IN))["StandIn"]().run(sys.orig_argv[sys.orig_argv.index("-m") :])
