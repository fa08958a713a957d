"""The tutorial for clusters: every command in it works on a real node, in their order."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from beds.cluster import build
from beds.kubelet import Bed, operatorpod
from beds.operator import Space
from beds.operator.wait import eventually
from support.pages import follow, shell_blocks

pytestmark = [pytest.mark.slow, pytest.mark.long]

# The fixture `operator` has done this, with options that concern only monitoring.
INSTALL = f"helm {shlex.join(operatorpod.installation('charts/resnetboost'))}\n"


def test_a_job_of_the_tutorial_survives_a_lost_pod(bed: Bed, space: Space, tmp_path: Path) -> None:
    where = [f"--namespace={space.namespace}"]
    bed.add_volume(f"{space.namespace}-any")  # no class of storage makes one here
    said = follow(shell_blocks("docs/tutorial-cluster.md", without=INSTALL), tmp_path, reader(bed, space, tmp_path))
    assert "0 problems" in said, "doctor --cluster"
    assert re.search(r"\"reason\":\"(Disrupted|PodLost)\"", said)
    eventually(
        lambda: bed.plane.kubectl("get", "rbj,pvc,pods", "--output=name", *where), lambda left: not left, "all goes"
    )


def reader(bed: Bed, space: Space, folder: Path) -> dict[str, str]:
    """Environment of a reader whose kubectl works in the test's namespace."""
    environment = bed.plane.environment()
    own = folder / "kubeconfig"
    shutil.copyfile(environment["KUBECONFIG"], own)
    programs = {str(path.parent) for path in build.programs(build.HELM).values()}
    bed.plane.kubectl("config", "set-context", "--current", f"--namespace={space.namespace}", f"--kubeconfig={own}")
    return {**environment, "KUBECONFIG": str(own), "PATH": ":".join([*programs, environment["PATH"]])}
