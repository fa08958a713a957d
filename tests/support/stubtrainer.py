"""Installs the stub trainer where a run looks for the real one."""

import shutil
from pathlib import Path

LAUNCHER = Path(__file__).parents[1] / "integration" / "stubs" / "launcher.py"
STUB = Path(__file__).parents[1] / "integration" / "stubs" / "trainer.py"


def install(folder: Path, *, launched: bool = False) -> Path:
    """Create a package of the stub under `folder`; returns the entry for PYTHONPATH.

    `launched`: process 1 is a stub launcher, which starts the stub trainer as its child.
    """
    package = folder / "stub" / "resnetboost_trainer"
    package.mkdir(parents=True)
    shutil.copy(LAUNCHER if launched else STUB, package / "__main__.py")
    shutil.copy(STUB, package / "rank.py")
    (package / "__init__.py").touch()
    return package.parent
