"""RBAC of the chart equals the operator's table of resources."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_api import names
from resnetboost_operator.kubeclient import resources
from resnetboost_operator.kubeclient.resources import CONFIG_MAPS, JOB_STATUS, JOBS, LEASES, NODES, PODS, Resource

FOLDER = Path(__file__).parents[2] / "charts" / "resnetboost" / "files"
FILES = ("rbac.yaml", "rbac-kueue.yaml", "rbac-gangs.yaml", "rbac-taints.yaml")


def roles(file: str = "rbac.yaml") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def granted(kind: str, file: str = "rbac.yaml") -> set[tuple[str, str, str]]:
    """(group, resource, verb) of all rules of the one role of that kind."""
    (role,) = (found for found in roles(file) if found["kind"] == kind)
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(wanted: tuple[Resource, ...]) -> set[tuple[str, str, str]]:
    return {(found.group, found.plural, verb) for found in wanted for verb in found.verbs}


def test_the_cluster_role_has_exactly_the_used_rights() -> None:
    assert granted("ClusterRole") == asked(resources.EVERYWHERE)


def test_the_role_allows_only_leader_election() -> None:
    assert granted("Role") == asked(resources.IN_OWN_NAMESPACE)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("rbac-kueue.yaml", resources.WITH_KUEUE),
        ("rbac-gangs.yaml", resources.WITH_GANGS),
        ("rbac-taints.yaml", resources.WITH_TAINTS),
    ],
    ids=["queues", "gangs", "taints"],
)
def test_an_optional_role_grants_exactly_what_its_option_uses(file: str, wanted: tuple[Resource, ...]) -> None:
    assert granted("ClusterRole", file) == asked(wanted)


def test_only_its_own_lease_may_be_changed() -> None:
    (role,) = (found for found in roles() if found["kind"] == "Role")
    named = [rule for rule in role["rules"] if rule.get("resourceNames") == [names.MANAGED_BY]]
    assert [sorted(rule["verbs"]) for rule in named] == [["get", "update"]]


def test_no_right_is_a_wildcard() -> None:
    rules = [rule for file in FILES for role in roles(file) for rule in role["rules"]]
    assert "*" not in {word for rule in rules for key in ("apiGroups", "resources", "verbs") for word in rule[key]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("team"), "/api/v1/namespaces/team/pods"),
        (PODS.path("team", "a"), "/api/v1/namespaces/team/pods/a"),
        (NODES.path(), "/api/v1/nodes"),
        (JOBS.path("team", "a"), "/apis/resnetboost.io/v1alpha1/namespaces/team/resnetboostjobs/a"),
        (JOB_STATUS.path("team", "a"), "/apis/resnetboost.io/v1alpha1/namespaces/team/resnetboostjobs/a/status"),
        (LEASES.path("ops"), "/apis/coordination.k8s.io/v1/namespaces/ops/leases"),
        (CONFIG_MAPS.path("team"), "/api/v1/namespaces/team/configmaps"),
    ],
)
def test_paths_are_those_of_the_api_server(path: str, expected: str) -> None:
    assert path == expected


def test_every_kind_that_a_plan_may_create_can_be_created_and_looked_at() -> None:
    assert all(
        {"create", "get"} <= found.verbs for found in (*resources.BY_KIND.values(), *resources.POD_GROUPS.values())
    )
