"""Operators: whether one leads, whether it has this version, and whether two serve the same jobs."""

import itertools
from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator import __version__, readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Manifest, Unknown, arguments, labels, name, unknown
from resnetboost_operator.observed import pods

CHECK = "operator"
# A leader renews every 4 s; clocks of machines differ.
SILENT_SECONDS = 30.0
_NAMESPACE = "--namespace="
_VERSION = "app.kubernetes.io/version"
# A Deployment says how many pods are missing, its pods say why.
_PODS = "kubectl describe pods -A -l app.kubernetes.io/component=operator"


def check(facts: Facts) -> Iterator[Finding]:
    """By its lease, and by the chart's Deployment."""
    yield from _leading(facts)
    if isinstance(facts.operators, Unknown):
        yield from unknown(CHECK, facts.operators)
        return
    for deployment in facts.operators:
        yield _deployed(deployment)
    for one, other in itertools.combinations(facts.operators, 2):
        yield from _rivals(one, other)


def _leading(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.leases, Unknown):
        yield from unknown(CHECK, facts.leases)
        return
    held = [lease for lease in facts.leases if lease.holder]
    if not facts.leases:
        remedy = "helm install resnetboost charts/resnetboost: without an operator, jobs stay as they are"
        yield findings.problem(CHECK, "no operator is here: there is no lease of one", remedy)
    elif not held:
        remedy = f"{_PODS} shows why"
        yield findings.problem(CHECK, "none leads: the last one gave up its lease", remedy)
    for lease in held:
        silent = facts.now - pods.seconds(lease.renew_time or None)
        if silent > max(SILENT_SECONDS, lease.duration_seconds):
            message = f"{lease.holder} has not renewed its lease for {readable.duration(silent)}"
            yield findings.problem(CHECK, message, "look at its pod and its log: kubectl logs, kubectl describe")
        else:
            yield findings.ok(CHECK, f"{lease.holder} leads")


def _deployed(deployment: Manifest) -> Finding:
    where = _where(deployment)
    version, ready = labels(deployment).get(_VERSION, "?"), (deployment.get("status") or {}).get("readyReplicas") or 0
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    if version != __version__:
        message = f"{where} has version {version}, this command {__version__}"
        return findings.warning(CHECK, message, "use the same version of both: helm upgrade, or update this command")
    if ready < wanted:
        message = f"{where} has {ready} of {readable.plural(wanted, 'replica')} ready"
        make = findings.warning if ready else findings.problem
        return make(CHECK, message, f"{_PODS} shows why")
    return findings.ok(CHECK, f"{where}: version {version}, {readable.plural(ready, 'replica')} ready")


def _rivals(one: Manifest, other: Manifest) -> Iterator[Finding]:
    """Two releases have a lease each, so that both lead and each undoes what the other does."""
    of_one, of_other = _namespaces(one), _namespaces(other)
    shared = of_one & of_other if of_one and of_other else of_one | of_other
    if of_one and of_other and not shared:
        return
    which = f"namespaces {readable.listed(sorted(shared))}" if shared else "all namespaces"
    message = f"{_where(one)} and {_where(other)} both serve the jobs of {which}"
    yield findings.problem(CHECK, message, "helm uninstall one of them, or give each its own watchNamespaces")


def _namespaces(deployment: Manifest) -> set[str]:
    """The namespaces that it serves; empty: all."""
    return {word.removeprefix(_NAMESPACE) for word in arguments(deployment) if word.startswith(_NAMESPACE)}


def _where(deployment: Manifest) -> str:
    return f"{deployment.get('metadata', {}).get('namespace', '')}/{name(deployment)}"
