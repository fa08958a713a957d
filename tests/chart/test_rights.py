"""What the API server lets the operator and a namespace's users do, and the tables of it in docs/security.md.

`make rights` writes the tables anew.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from beds.cluster import ClusterError, ControlPlane
from beds.cluster.helm import CHART, Helm
from beds.operator.wait import eventually
from chart import installation

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- rights -->\n", "<!-- end of rights -->\n"
# Values of the chart that grant more.
OPTIONS = {"gangScheduling.enabled": "true", "kueue.enabled": "true", "nodeExclusion.taint": "NoSchedule"}
# Verbs in the order of Kubernetes' documents.
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
ROLES = ("view", "edit", "admin")
# Resource, verb and what an operator would gain by it: it has none of these rights.
NEVER = (
    ("secrets", "get"),
    ("secrets", "list"),
    ("pods/exec", "create"),
    ("pods/log", "get"),
    ("serviceaccounts/token", "create"),
    ("resnetboostjobs.resnetboost.io", "update"),
    ("clusterroles.rbac.authorization.k8s.io", "escalate"),
    ("clusterroles.rbac.authorization.k8s.io", "bind"),
    ("users", "impersonate"),
    ("nodes/proxy", "get"),
    ("persistentvolumeclaims", "get"),
)

# (group/resource, restricted to these names) -> verbs
Rights = Mapping[tuple[str, str], frozenset[str]]


@pytest.fixture(autouse=True)
def cleared(plane: ControlPlane, helm: Helm) -> Iterator[None]:
    yield
    installation.clear(plane, helm)


def test_the_document_says_what_the_api_server_answers(
    plane: ControlPlane, helm: Helm, release_namespace: str, namespaces: Iterator[str]
) -> None:
    elsewhere = next(namespaces)
    user, where = f"system:serviceaccount:{release_namespace}:resnetboost", f"--namespace={release_namespace}"
    helm("install", "resnetboost", CHART, where, *values())
    plain = rights(plane, user, elsewhere)
    rows = [*rows_of(plain, "", elsewhere)]
    rows += rows_of(less(rights(plane, user, release_namespace), plain), "", "its own")
    for option in OPTIONS:
        helm("upgrade", "resnetboost", CHART, where, *values(option))
        rows += rows_of(less(rights(plane, user, elsewhere), plain), option, elsewhere)
    written = "\n".join(
        [
            "| the operator may | | where | if |",
            "|---|---|---|---|",
            *rows,
            "",
            "| with the role | jobs | their status | their scale |",
            "|---|---|---|---|",
            *(row_of_role(plane, role, elsewhere) for role in ROLES),
        ]
    )
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    if os.environ.get("UPDATE_RIGHTS"):
        DOCUMENT.write_text(f"{before}{BEGIN}\n{written}\n\n{END}{after}")
    else:
        assert old.strip() == written, "run `make rights` if this is meant, and read the diff"


def test_it_may_not_read_secrets_enter_pods_or_grant_rights(
    plane: ControlPlane, helm: Helm, release_namespace: str, namespaces: Iterator[str]
) -> None:
    helm("install", "resnetboost", CHART, f"--namespace={release_namespace}", *values(*OPTIONS))
    user = f"system:serviceaccount:{release_namespace}:resnetboost"
    for namespace in (release_namespace, next(namespaces)):
        for resource, verb in NEVER:
            assert not allowed(plane, user, namespace, resource, verb), (resource, verb)


def test_an_operator_of_some_namespaces_has_no_right_in_others(
    plane: ControlPlane, helm: Helm, release_namespace: str, namespaces: Iterator[str]
) -> None:
    mine, theirs = next(namespaces), next(namespaces)
    helm(
        "install",
        "resnetboost",
        CHART,
        f"--namespace={release_namespace}",
        f"--set=watchNamespaces={{{mine}}}",
        *values(),
    )
    user = f"system:serviceaccount:{release_namespace}:resnetboost"
    assert ("pods", "") in rights(plane, user, mine)
    assert rights(plane, user, theirs) == {("nodes", ""): frozenset({"list", "watch"})}


def values(*on: str) -> list[str]:
    """Options of helm with these values of the chart on and the others off."""
    return [f"--set={name}={value if name in on else 'false'}" for name, value in OPTIONS.items()]


def rights(plane: ControlPlane, user: str, namespace: str) -> dict[tuple[str, str], frozenset[str]]:
    """What a user may do in a namespace beyond what everybody may."""
    return less(reviewed(plane, user, namespace), reviewed(plane, "nobody", namespace))


def less(these: Rights, others: Rights) -> dict[tuple[str, str], frozenset[str]]:
    found = {place: verbs - others.get(place, frozenset()) for place, verbs in these.items()}
    return {place: verbs for place, verbs in found.items() if verbs}


def reviewed(plane: ControlPlane, user: str, namespace: str) -> dict[tuple[str, str], frozenset[str]]:
    """The API server's own answer, by a SelfSubjectRulesReview."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    command = ("create", "--filename=-", "--output=json", "--validate=false", f"--as={user}")
    status = json.loads(plane.kubectl(*command, input=json.dumps(review)))["status"]
    assert not status["incomplete"]
    found: dict[tuple[str, str], frozenset[str]] = {}
    for rule in status["resourceRules"]:
        for place in places(rule):
            found[place] = found.get(place, frozenset()) | frozenset(rule["verbs"])
    return found


def places(rule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            kind = f"{resource}.{group}" if group else resource
            yield kind, " ".join(rule.get("resourceNames", ()))


def rows_of(found: Rights, option: str, where: str) -> Iterator[str]:
    for (kind, names), verbs in sorted(found.items()):
        place = "its own namespace" if where == "its own" else "namespaces with jobs"
        if kind.partition(".")[0] in ("nodes", "resourceflavors", "workloadpriorityclasses", "priorityclasses"):
            place = "the cluster"
        condition = f"`{option}`" if option else ""
        named = f" named `{names}`" if names else ""
        yield f"| {listed(verbs)} | `{kind}`{named} | {place} | {condition} |"


def row_of_role(plane: ControlPlane, role: str, namespace: str) -> str:
    """What a user with one of Kubernetes' roles may do with jobs, once the API server has aggregated them."""
    user = f"user-{role}"
    plane.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", f"--namespace={namespace}")
    found = eventually(
        lambda: rights(plane, user, namespace),
        lambda found: ("resnetboostjobs.resnetboost.io", "") in found,
        f"the role {role} has jobs",
    )
    kinds = ("resnetboostjobs", "resnetboostjobs/status", "resnetboostjobs/scale")
    cells = [listed(found.get((f"{kind}.resnetboost.io", ""), frozenset())) for kind in kinds]
    return f"| `{role}` | {' | '.join(cells)} |"


def listed(verbs: frozenset[str]) -> str:
    return ", ".join(sorted(verbs, key=VERBS.index))


def allowed(plane: ControlPlane, user: str, namespace: str, resource: str, verb: str) -> bool:
    kind, _, sub = resource.partition("/")
    more = [f"--subresource={sub}"] if sub else []
    try:
        plane.kubectl("auth", "can-i", verb, kind, *more, f"--namespace={namespace}", f"--as={user}", "--quiet")
    except ClusterError:
        return False
    return True
