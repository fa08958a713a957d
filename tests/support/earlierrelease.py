"""Programs and chart of release 0.1.0, unpacked from tests/upgrade, to run beside today's."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "upgrade" / "0.1.0" / "source.tar.xz"
_SECONDS = 120


class EarlierRelease:
    """folder: where it is unpacked, unless that was done before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.exists():
            with tarfile.open(SOURCE) as archive:
                archive.extractall(folder, filter="data")

    @property
    def chart(self) -> Path:
        """Its helm chart."""
        return self._folder / "charts" / "resnetboost"

    @property
    def definition(self) -> Path:
        """Its CRD."""
        return self._folder / "crds" / "resnetboostjobs.yaml"

    @property
    def operator(self) -> Path:
        """The folder of its package resnetboost_operator, for PYTHONPATH."""
        return self._folder / "operator"

    @property
    def trainer(self) -> Path:
        """The folder of its package resnetboost_trainer, for PYTHONPATH."""
        return self._folder / "trainer"

    def environment(self) -> Mapping[str, str]:
        """Variables with which `python -m resnetboost_operator` and `-m resnetboost_trainer` are its programs."""
        return {**os.environ, "PYTHONPATH": f"{self.operator}:{self.trainer}"}

    def ask(self, code: str, given: Any) -> Any:
        """Run a script with its packages: JSON of `given` on standard input, JSON of the result on standard output."""
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command,
            env=self.environment(),
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
