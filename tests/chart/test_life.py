"""A release from install to uninstall on a real API server: the CRD, jobs and pods survive."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from beds.cluster import ClusterError, ControlPlane
from beds.cluster.fixtures import CRD
from beds.cluster.helm import CHART, Helm
from beds.operator import Space
from beds.operator.jobs import job
from beds.operator.namespace import JOB
from beds.operator.wait import eventually
from chart import installation
from chart.installation import has_added_field, has_definition, install, uids
from resnetboost_operator.manifests import devices

pytestmark = pytest.mark.slow

NEEDS_CONTAINERS = re.compile(r" (?:get|wait) rbj[ /]first-job -| logs ")


@pytest.fixture(autouse=True)
def cleared(plane: ControlPlane, helm: Helm) -> Iterator[None]:
    yield
    installation.clear(plane, helm)


@pytest.fixture
def space(plane: ControlPlane, namespaces: Iterator[str]) -> Space:
    """A namespace with a user's jobs."""
    return Space(plane, next(namespaces))


def finish(space: Space) -> None:
    """Let all pods succeed."""
    space.plane.kubectl("annotate", "pods", "--all", "exit-code=0", f"--namespace={space.namespace}")


def test_jobs_survive_upgrade_rollback_uninstall_and_reinstall(
    plane: ControlPlane, helm: Helm, release_namespace: str, space: Space, tmp_path: Path
) -> None:
    where = f"--namespace={release_namespace}"
    install(helm, release_namespace)
    with installation.operator(plane, release_namespace):
        space.create(job())
        space.until_started()
        before = uids(space.pods()), uids(space.all(JOB))

        helm("upgrade", "resnetboost", installation.next_version(tmp_path), where, "--wait")
        assert has_added_field(plane)
        helm("rollback", "resnetboost", "1", where, "--wait")
        assert not has_added_field(plane)
        assert (uids(space.pods()), uids(space.all(JOB))) == before

    helm("uninstall", "resnetboost", where, "--wait")
    assert not plane.kubectl("get", "leases", where, "--output=name"), "no holder is left that somebody would wait for"
    assert (uids(space.pods()), uids(space.all(JOB))) == before
    assert {pod["status"]["phase"] for pod in space.pods()} == {"Running"}

    install(helm, release_namespace)
    with installation.operator(plane, release_namespace):
        finish(space)
        status = space.until_phase("Complete")
    assert status["restarts"] == 0
    assert not installation.refused(plane, release_namespace)


def test_the_key_of_the_launchers_survives_an_upgrade(plane: ControlPlane, helm: Helm, release_namespace: str) -> None:
    """With another key the operator would give every gang that fails new pods."""

    def key() -> str:
        return plane.kubectl("get", "secret", "resnetboost-launchers", where, "--output=jsonpath={.data.key}")

    where = f"--namespace={release_namespace}"
    install(helm, release_namespace)
    before = key()
    install(helm, release_namespace, "--set=log.level=debug", verb="upgrade")
    assert key() == before != ""


def test_an_operator_of_some_namespaces_runs_only_their_jobs(
    plane: ControlPlane, helm: Helm, release_namespace: str, namespaces: Iterator[str]
) -> None:
    mine, theirs = (Space(plane, next(namespaces)) for _ in range(2))
    options = [f"--set=watchNamespaces={{{mine.namespace}}}", "--set=imageRegistry=registry.example/mirror"]
    install(helm, release_namespace, *options, release="team")
    theirs.create(job())
    mine.create(job())
    with installation.operator(plane, release_namespace, "team-resnetboost"):
        mine.until_started()
        images = {pod["spec"]["containers"][0]["image"] for pod in mine.pods()}
        finish(mine)
        mine.until_phase("Complete")
    assert images == {f"registry.example/mirror/{devices.TYPES['CPU'].image}"}
    assert theirs.status() == {}
    assert not theirs.pods()
    assert not installation.refused(plane, release_namespace, "team-resnetboost")


def test_an_orphaned_crd_stays_with_its_jobs(
    plane: ControlPlane, helm: Helm, release_namespace: str, space: Space
) -> None:
    install(helm, release_namespace)
    space.create(job())
    install(helm, release_namespace, "--set=crds.enabled=false", verb="upgrade")
    assert space.names_of(JOB) == ["digits"]
    helm("uninstall", "resnetboost", f"--namespace={release_namespace}", "--wait")
    with pytest.raises(ClusterError, match="invalid ownership metadata"):
        install(helm, release_namespace, release="another-resnetboost")
    install(helm, release_namespace, "--take-ownership", release="another-resnetboost")
    assert space.names_of(JOB) == ["digits"]


def test_a_crd_applied_by_kubectl_can_be_adopted(plane: ControlPlane, helm: Helm, release_namespace: str) -> None:
    plane.kubectl("apply", "--server-side", f"--filename={CRD}")
    with pytest.raises(ClusterError, match="invalid ownership metadata"):
        install(helm, release_namespace)
    install(helm, release_namespace, "--take-ownership")


def test_uninstall_removes_everything_if_asked(
    plane: ControlPlane, helm: Helm, release_namespace: str, space: Space
) -> None:
    install(helm, release_namespace, "--set=crds.keep=false")
    space.create(job())
    helm("uninstall", "resnetboost", f"--namespace={release_namespace}", "--wait")
    assert not has_definition(plane)
    assert not plane.kubectl("get", "clusterroles,clusterrolebindings", "--selector=app.kubernetes.io/name=resnetboost")


def test_two_operators_come_with_a_budget(plane: ControlPlane, helm: Helm, release_namespace: str) -> None:
    install(helm, release_namespace, "--set=replicas=2")
    found = plane.kubectl("get", "pdb,deployment", f"--namespace={release_namespace}", "--output=wide")
    assert "2/2" in found
    assert "poddisruptionbudget.policy/resnetboost" in found


def test_an_operator_without_rights_is_not_ready_until_somebody_grants_what_the_chart_prints(
    plane: ControlPlane, helm: Helm, release_namespace: str, space: Space
) -> None:
    where = f"--namespace={release_namespace}"
    own = ["--set=fullnameOverride=rnb", "--set=rbac.aggregate=false"]
    printed = helm("template", "resnetboost", CHART, where, *own, "--show-only=templates/rbac.yaml")
    lease = [found for found in yaml.safe_load_all(printed) if found["metadata"]["name"] == "rnb-lease"]
    others = [found for found in yaml.safe_load_all(printed) if found not in lease]
    install(helm, release_namespace, *own, "--set=rbac.create=false")
    plane.kubectl("apply", "--filename=-", input=yaml.safe_dump_all(others))
    try:
        with installation.operator(plane, release_namespace, "rnb", awaited=False) as process:
            eventually(
                process.readiness, lambda answer: 'lease: leases.coordination.k8s.io "rnb"' in answer, "no lease"
            )
            space.create(job())
            plane.kubectl("apply", "--filename=-", input=yaml.safe_dump_all(lease))
            space.until_started()
    finally:
        plane.kubectl("delete", "--filename=-", "--ignore-not-found", input=printed)


def test_whoever_may_edit_a_namespace_may_train_in_it(
    plane: ControlPlane, helm: Helm, release_namespace: str, space: Space
) -> None:
    install(helm, release_namespace)
    kubectl = plane.kubectl
    kubectl("create", "rolebinding", "eve", "--clusterrole=edit", "--user=eve", f"--namespace={space.namespace}")

    def may(verb: str) -> str:
        command = ["auth", "can-i", verb, JOB, f"--namespace={space.namespace}", "--as=eve"]
        return answered(plane, *command)

    eventually(lambda: may("create"), lambda answer: answer == "yes", "the roles are aggregated")
    assert [may(verb) for verb in ("get", "patch", "delete")] == ["yes"] * 3


def answered(plane: ControlPlane, *command: str) -> str:
    """kubectl's output, also if it fails."""
    try:
        return plane.kubectl(*command).strip()
    except ClusterError:
        return "no"


def test_what_helm_prints_can_be_done(plane: ControlPlane, helm: Helm, release_namespace: str) -> None:
    install(helm, release_namespace, "--set=fullnameOverride=rnb")
    notes = helm("get", "notes", "resnetboost", f"--namespace={release_namespace}")
    lines = notes.removeprefix("NOTES:\n").splitlines()
    script = "\n".join(line for line in lines if not NEEDS_CONTAINERS.search(line))
    environment = plane.environment()
    done = subprocess.run(
        ["bash", "-euc", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'deployment "rnb" successfully rolled out' in done.stdout
    assert "resnetboostjob.resnetboost.io/first-job created" in done.stdout
    assert re.search(r"^Kind: +ResNetBoostJob$", done.stdout, re.MULTILINE)
