"""The real Prometheus operator beside a control plane, and what it makes of monitors and rules for its Prometheus."""

import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from beds.cluster import ControlPlane, build, monitoringkinds
from beds.ports import free_port

Manifest = dict[str, Any]

_PROGRAM = "prometheus-operator"
_NAMESPACE = "default"  # of its example manifests
_NAME = "test"
_CONFIGURATION = "prometheus.yaml.gz"
_SECONDS = 60


class Written(NamedTuple):
    """The configuration for a Prometheus, and the texts of its rule files by name."""

    configuration: Manifest
    rules: dict[str, str]


class PrometheusOperator:
    """Its controller, with the rights of its example manifests, and one Prometheus object, which selects everything.

    The constructor installs kinds, roles and that object. Nothing runs in pods: what the operator writes for its
    Prometheus can be given to one that runs anywhere.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._programs = build.programs(build.MONITORING)
        monitoringkinds.create_all(plane)
        for account in (_PROGRAM, "prometheus"):
            folder = monitoringkinds.examples() / "rbac" / account
            kinds = ("cluster-role", "cluster-role-binding", "service-account")
            plane.kubectl("create", *(f"--filename={folder}/{account}-{kind}.yaml" for kind in kinds))
        self._create(self._prometheus())

    @property
    def prometheus(self) -> Path:
        """The Prometheus of the version that this operator knows, with Kubernetes' service discovery."""
        return self._programs["prometheus"]

    def start(self) -> None:
        """Start it."""
        kubeconfig = self._plane.token_kubeconfig(_NAMESPACE, _PROGRAM)
        options = [f"--web.listen-address=127.0.0.1:{free_port()}"]
        self._plane.processes.start(
            _PROGRAM, "env", f"KUBECONFIG={kubeconfig}", self._programs[_PROGRAM], *options, vital=True
        )

    def written(self) -> Written | None:
        """What it has written for its Prometheus so far; None while there is nothing."""
        path = f"/api/v1/namespaces/{_NAMESPACE}"
        secret, rules = f"{path}/secrets/prometheus-{_NAME}", f"{path}/configmaps/prometheus-{_NAME}-rulefiles-0"
        client = self._plane.client
        if not client.answers(secret) or not client.answers(rules):
            return None
        text = gzip.decompress(b64decode(json.loads(client.get(secret))["data"][_CONFIGURATION])).decode()
        # What its reloader puts in beside each Prometheus; this is the only one.
        configuration = yaml.safe_load(text.replace("$(SHARD)", "0"))
        return Written(configuration, json.loads(client.get(rules)).get("data") or {})

    def until_written(self, *monitors: str) -> Written:
        """What it has written, once there are rules and the scrapes of monitors with these names.

        Nothing is written of a monitor that the operator refuses.
        """

        def is_complete() -> bool:
            found = self.written()
            scrapes = [scrape["job_name"] for scrape in found.configuration["scrape_configs"]] if found else []
            has_monitors = all(any(f"/{name}/" in scrape for scrape in scrapes) for name in monitors)
            return found is not None and bool(found.rules) and has_monitors

        self._plane.processes.wait_until(is_complete, f"the configuration for {', '.join(monitors)}", _SECONDS)
        found = self.written()
        assert found is not None
        return found

    def _prometheus(self) -> Manifest:
        """An object that selects every monitor and rule, and asks for no pod."""
        token = self._plane.folder / "prometheus.token"
        token.write_text(
            self._plane.kubectl("create", "token", "prometheus", f"--namespace={_NAMESPACE}", "--duration=24h")
        )
        kinds = ("podMonitor", "serviceMonitor", "rule")
        everything = [f"{kind}{what}" for kind in kinds for what in ("Selector", "NamespaceSelector")]
        spec = {
            "replicas": 0,
            "serviceAccountName": "prometheus",
            "scrapeInterval": "1s",
            "evaluationInterval": "1s",
            "apiserverConfig": {
                "host": self._plane.url,
                "authorization": {"credentialsFile": str(token)},
                "tlsConfig": {"caFile": str(self._plane.ca)},
            },
            **{selector: {} for selector in everything},
        }
        metadata = {"name": _NAME, "namespace": _NAMESPACE}
        return {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": metadata, "spec": spec}

    def _create(self, manifest: Manifest) -> None:
        self._plane.kubectl("create", "--filename=-", input=json.dumps(manifest))
