"""The test bed with a real kubelet leaves no folders on the machine."""

import re
from pathlib import Path

from beds.kubelet import texts


def test_containerd_creates_folders_only_in_the_bed(tmp_path: Path) -> None:
    """containerd creates every folder its configuration names, and /opt/containerd if none is named for plugins."""
    text = texts.containerd(tmp_path / "root", tmp_path / "state", tmp_path / "socket", tmp_path / "network")
    named = set(re.findall(r'= "(/[^"]*)"', text)) - {"/usr/lib/cni"}  # folders of the Debian package
    assert {path for path in named if not path.startswith(f"{tmp_path}/")} == set()
    assert re.search(r'internal\.v1\.opt"\]\npath = ', text)
