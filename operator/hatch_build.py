"""Build hook that packs the CRD into the wheel as package data, byte for byte; it changes nothing in the tree."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CRD = "crds/resnetboostjobs.yaml"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Finds the CRD beside operator/ in a checkout, or inside an unpacked source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the CRD to the archive; an editable install needs no copy, as it would go stale."""
        if version == "editable":
            return
        root = Path(self.root)
        source = next((path for path in (root.parent / CRD, root / CRD) if path.is_file()), None)
        if source is None:
            raise FileNotFoundError(f"{CRD} is neither beside nor in {root}: build from a complete checkout")
        target = CRD if self.target_name == "sdist" else f"resnetboost_operator/{CRD}"
        build_data["force_include"][str(source)] = target
