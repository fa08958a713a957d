"""Sets up a forked process as `python ARGUMENTS` would be, except for the modules already imported."""

import atexit
import faulthandler
import importlib
import logging
import os
import runpy
import signal
import site
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PACKAGE = os.path.join(os.path.dirname(__file__), "package")
# What makes the start of each program slow. No modules of ours, because a test may replace them.
IMPORTED = {
    "rank": (
        "mindspore.nn",
        "mindspore.ops",
        "mindspore.communication",
        "mindspore.dataset",
        "msgspec",
        "prometheus_client",
        "safetensors.numpy",
        "yaml",
    ),
    "operator": (
        "aiohttp.web",
        "click",
        "kopf",
        "kubernetes.aio.client",
        "kubernetes.aio.config",
        "msgspec",
        "prometheus_client",
        "yaml",
    ),
}


@dataclass
class Request:
    """A Python process to run. `parent` is the process id it reports as its parent, instead of the forking process.

    program: the key of `IMPORTED` that says which modules it finds imported.
    """

    program: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    cores: list[int]
    umask: int
    parent: int


def warm_up(program: str) -> None:
    """Import what makes that program's start slow. Sets no device and no context, and makes no tensor."""
    for name in IMPORTED[program]:
        importlib.import_module(name)


def run(request: Request) -> NoReturn:
    """Run the request, and exit as Python does."""
    _become(request)
    try:
        code = _execute(request.arguments)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become(request: Request) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(request.umask)
    os.chdir(request.folder)
    os.sched_setaffinity(0, request.cores)
    os.environ.clear()
    os.environ.update(request.environment)
    me, real = os.getpid(), os.getppid
    os.getppid = lambda: request.parent if os.getpid() == me else real()  # its own forks see the truth
    sys.orig_argv[:] = [sys.executable, *request.arguments]
    if request.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if request.environment.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    own = str(Path(__file__).parents[2])
    paths = filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))
    # `python -m` put its working directory, or nothing, before the tests' own entries from PYTHONPATH.
    sys.path[:] = [path for path in paths if path != _PACKAGE] + [path for path in sys.path[1:] if path != own]
    site.execsitecustomize()


def _execute(arguments: list[str]) -> int:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
