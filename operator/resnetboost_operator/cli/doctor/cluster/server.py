"""Server: the version of the API server."""

import re
from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator.cli.doctor.cluster.facts import Facts

OLDEST = 29  # CEL on custom resources is stable since 1.29, as the chart's kubeVersion says


def check(facts: Facts) -> Iterator[Finding]:
    """Refuse a server older than the chart needs."""
    written = str(facts.version.get("gitVersion", ""))
    found = re.match(r"v?(\d+)\.(\d+)", written)
    if found is None:
        yield findings.warning("server", f"it does not say its version ({written!r})", f"use 1.{OLDEST} or newer")
    elif (int(found[1]), int(found[2])) < (1, OLDEST):
        yield findings.problem("server", f"Kubernetes {written}", f"upgrade to 1.{OLDEST} or newer")
    else:
        yield findings.ok("server", f"Kubernetes {written}")
