"""The operator's service account, with exactly the rights of the chart's files/rbac*.yaml."""

import json
from pathlib import Path
from typing import Any

import yaml

from beds.cluster import ControlPlane

FILES = Path(__file__).parents[3] / "charts" / "resnetboost" / "files"
RULES = FILES / "rbac.yaml"
# Granted only where the chart's values kueue.enabled and gangScheduling.enabled say so.
KUEUE_RULES = FILES / "rbac-kueue.yaml"
GANG_RULES = FILES / "rbac-gangs.yaml"
TAINT_RULES = FILES / "rbac-taints.yaml"
NAMESPACE = "resnetboost-system"
NAME = "resnetboost-operator"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "rbac.authorization.k8s.io"


class Account:
    """Created by the constructor; `user` is its name in the audit log."""

    user = f"system:serviceaccount:{NAMESPACE}:{NAME}"

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = {"metadata": {"name": NAME}}
        plane.client.send("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
        self._grant(_role("ClusterRole"), _RBAC)
        self.allow_lease(NAMESPACE)
        self.kubeconfig = plane.token_kubeconfig(NAMESPACE, NAME)

    def kubeconfig_via(self, url: str, name: str) -> Path:
        """The account's kubeconfig for another address of the API server: a proxy without TLS."""
        content = json.loads(self.kubeconfig.read_text())
        content["clusters"][0]["cluster"] = {"server": url}
        path = self._plane.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def allow_lease(self, namespace: str) -> None:
        """Allow leases in another namespace too, for operators that are not replicas of each other."""
        self._grant(_role("Role"), f"{_RBAC}/namespaces/{namespace}")

    def allow(self, rules: Path) -> None:
        """Grant the optional rights of a file, KUEUE_RULES or GANG_RULES."""
        for role in roles(rules):
            self._grant(role, _RBAC)

    def deny(self, rules: Path) -> None:
        """Take the optional rights of a file back."""
        for role in roles(rules):
            for kind in ("clusterrolebindings", "clusterroles"):
                self._plane.client.send("DELETE", f"{_RBAC}/{kind}/{role['metadata']['name']}")

    def _grant(self, role: dict[str, Any], root: str) -> None:
        """Create a role from the file and bind it to the account."""
        kind, name = role["kind"], role["metadata"]["name"]
        self._plane.client.send("POST", f"{root}/{kind.lower()}s", role)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": NAME}],
        }
        self._plane.client.send("POST", f"{root}/{kind.lower()}bindings", binding)


def roles(rules: Path = RULES) -> list[dict[str, Any]]:
    """The roles of a file; by default the ClusterRole and the Role that every operator needs."""
    return list(yaml.safe_load_all(rules.read_text()))


def _role(kind: str) -> dict[str, Any]:
    return next(role for role in roles() if role["kind"] == kind)
