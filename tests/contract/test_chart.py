"""The chart matches its sources: the CRD, the version and values.yaml. tests/chart runs helm."""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from resnetboost_operator.manifests import devices

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resnetboost"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
OF_A_PARENT = {"global", "enabled"}  # values that helm passes to a subchart


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_generated_files_of_the_chart_are_current(tmp_path: Path) -> None:
    copy = shutil.copytree(CHART, tmp_path / "chart")
    subprocess.run([sys.executable, ROOT / "scripts" / "chart_values.py", copy], check=True)
    different = {name for name, text in contents(copy).items() if text != contents(CHART).get(name)}
    assert not different, "run `make chart`"


def test_the_charts_crd_is_a_byte_copy() -> None:
    name = "resnetboostjobs.yaml"
    assert (CHART / "files" / name).read_bytes() == (ROOT / "crds" / name).read_bytes()


def test_chart_operator_and_images_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]["version"]
    tags = {kind.image.rpartition(":")[2] for kind in devices.TYPES.values()}
    assert {chart["version"], chart["appVersion"], *tags} == {version}


def test_each_type_of_device_has_an_image_that_can_be_set() -> None:
    assert list(VALUES["trainerImages"]) == list(devices.TYPES)


def test_the_schema_knows_the_values_and_no_others() -> None:
    assert set(SCHEMA["properties"]) - set(VALUES) == OF_A_PARENT
    assert not list(differences(VALUES, SCHEMA, ""))


def differences(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    """Values missing in the schema, and schema properties missing in the values; free-form objects are not compared."""
    for name, value in values.items():
        described = schema["properties"].get(name)
        if described is None:
            yield f"{path}{name} is not in the schema"
        elif isinstance(value, dict) and "properties" in described and value.keys() <= described["properties"].keys():
            yield from differences(value, described, f"{path}{name}.")
            if not described.get("additionalProperties", True) and path + name not in ("resources", "affinity"):
                yield from (f"{path}{name}.{lacking}" for lacking in described["properties"].keys() - value.keys())
        elif isinstance(value, dict) and "properties" in described:
            yield f"{path}{name}: {sorted(value.keys() - described['properties'].keys())} are not in the schema"


def test_every_value_is_described_in_the_readme() -> None:
    readme = (CHART / "README.md").read_text()
    told = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    paths = {path for path, _ in leaves(VALUES)}
    assert {path for path in paths if not any(path == found or path.startswith(f"{found}.") for found in told)} == set()


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
