"""Rights: what the caller may do with jobs in the namespace."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator import readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Unknown, unknown

CHECK = "rights"
_REMEDY = "ask for the ClusterRole edit in that namespace: the chart adds jobs to it (rbac.aggregate)"


def check(facts: Facts) -> Iterator[Finding]:
    """Without the namespace or create nobody can start a job; without the others only some commands fail.

    Who may not read namespaces is not told so: the server's word about jobs is enough.
    """
    if isinstance(facts.rights, Unknown):
        yield from unknown(CHECK, facts.rights)
        return
    if facts.has_namespace is False:
        remedy = f"kubectl create namespace {facts.namespace}, or name another with -n"
        yield findings.problem(CHECK, f"there is no namespace {facts.namespace}", remedy)
        return
    lacking = [verb for verb, allowed in facts.rights.items() if not allowed]
    place = f"jobs in namespace {facts.namespace}"
    if "create" in lacking:
        yield findings.problem(CHECK, f"you may not {readable.listed(lacking, 9)} {place}", _REMEDY)
    elif lacking:
        yield findings.warning(CHECK, f"you may create, but not {readable.listed(lacking, 9)} {place}", _REMEDY)
    else:
        yield findings.ok(CHECK, f"you may {readable.listed(list(facts.rights), 9)} {place}")
