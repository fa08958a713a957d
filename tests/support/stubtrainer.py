"""Installs the stub trainer where a run looks for the real one."""

import shutil
from pathlib import Path

STUB = Path(__file__).parents[1] / "integration" / "stubs" / "trainer.py"


def install(folder: Path) -> Path:
    """Create a package of the stub under `folder`; returns the entry for PYTHONPATH."""
    package = folder / "stub" / "resnetboost_trainer"
    package.mkdir(parents=True)
    shutil.copy(STUB, package / "__main__.py")
    (package / "__init__.py").touch()
    return package.parent
