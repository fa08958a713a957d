"""Installing chart releases in a cluster, and running an operator under a release's account and options."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from beds.cluster import ControlPlane
from beds.cluster.helm import CHART, Helm
from beds.operator import Operator
from chart.rendered import Manifest

DEFINITION = "resnetboostjobs.resnetboost.io"
_COMMAND = ["python", "-m", "resnetboost_operator"]


def install(
    helm: Helm,
    namespace: str,
    *options: str,
    release: str = "resnetboost",
    verb: str = "install",
    chart: Path = CHART,
) -> str:
    """Install the release and wait until its pods are ready; returns helm's output."""
    return helm(verb, release, chart, f"--namespace={namespace}", "--wait", "--timeout=2m", *options)


def clear(plane: ControlPlane, helm: Helm) -> None:
    """Remove all releases, jobs and the CRD."""
    for release in json.loads(helm("list", "--all-namespaces", "--output=json")):
        helm("uninstall", release["name"], f"--namespace={release['namespace']}", "--wait")
    plane.kubectl("delete", "crd", DEFINITION, "--ignore-not-found")


@contextmanager
def operator(
    plane: ControlPlane,
    namespace: str,
    release: str = "resnetboost",
    *,
    awaited: bool = True,
    packages: Path | None = None,
) -> Iterator[Operator]:
    """Run the operator of a release as a process, because kwok runs no containers. awaited: wait until it is ready.

    packages: folder of another version's package.
    """
    found = json.loads(plane.kubectl("get", "deployment", release, f"--namespace={namespace}", "--output=json"))
    spec = found["spec"]["template"]["spec"]
    args = spec["containers"][0]["args"]
    assert args[:3] == _COMMAND
    kubeconfig = plane.token_kubeconfig(namespace, spec["serviceAccountName"])
    name = f"{release}-{namespace}"
    process = Operator(plane, kubeconfig, name, lease_namespace=namespace, options=args[3:], packages=packages)
    process.launch()
    try:
        if awaited:
            process.until_ready()
        yield process
    finally:
        process.kill()


def refused(plane: ControlPlane, namespace: str, account: str = "resnetboost") -> set[tuple[str, str]]:
    """(resource, verb) of the account's requests that were always refused."""
    asked = list(plane.requests(f"system:serviceaccount:{namespace}:{account}"))
    rights = {code: {(found.resource, found.verb) for found in asked if found.code == code} for code in (403, 200, 201)}
    return rights[403] - rights[200] - rights[201]


def next_version(folder: Path) -> Path:
    """A chart of a later version, whose CRD has one more field."""
    chart = shutil.copytree(CHART, folder / "resnetboost")
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "99.0.0"}))
    definition = chart / "files" / "resnetboostjobs.yaml"
    content = yaml.safe_load(definition.read_text())
    (version,) = content["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["added"] = {"type": "string"}
    definition.write_text(yaml.safe_dump(content))
    return chart


def has_added_field(plane: ControlPlane) -> bool:
    """Whether the cluster has the later version's CRD."""
    definition: dict[str, Any] = json.loads(plane.kubectl("get", "crd", DEFINITION, "--output=json"))
    (version,) = definition["spec"]["versions"]
    return "added" in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def has_definition(plane: ControlPlane) -> bool:
    """Whether the cluster has the CRD."""
    return bool(plane.kubectl("get", "crd", DEFINITION, "--ignore-not-found", "--output=name").strip())


def uids(objects: list[Manifest]) -> dict[str, str]:
    """Name and uid of each object, because objects of the same name may have been re-created."""
    return {found["metadata"]["name"]: found["metadata"]["uid"] for found in objects}
