"""Runs helm with its cache and configuration in a temporary folder."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from beds.cluster import build
from beds.cluster.controlplane import ControlPlane
from beds.cluster.errors import ClusterError

CHART = Path(__file__).parents[3] / "charts" / "resnetboost"
_SECONDS = 600


class Helm:
    """folder: helm's cache and configuration. environment: how to reach a cluster; empty: none."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._program = build.programs(build.HELM)["helm"]
        own = {f"HELM_{kind}_HOME": str(folder / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment, **own}

    @classmethod
    def of(cls, plane: ControlPlane) -> "Helm":
        """helm as a cluster's administrator."""
        return cls(plane.folder, plane.environment())

    def __call__(self, *arguments: str | Path, input: str | None = None) -> str:
        """helm's output; raises `ClusterError` with its error message."""
        done = subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ClusterError((done.stderr + done.stdout).strip())
        return done.stdout
