"""`resnetboost doctor --cluster`: reads the cluster once and prints the findings."""

import asyncio
import sys

import msgspec

from resnetboost_api import findings
from resnetboost_api.findings import Report
from resnetboost_operator import __version__, readable
from resnetboost_operator.cli import interruptible
from resnetboost_operator.cli.doctor.cluster import facts, registry
from resnetboost_operator.kubeclient import inspector


def run(namespace: str, form: str) -> int:
    """Examine the cluster of the kubeconfig; return the exit code. Raises `UserError` if none answers."""
    return asyncio.run(interruptible.until_interrupted(_examine(namespace, form)))


async def _examine(namespace: str, form: str) -> int:
    async with inspector.connected(namespace) as (cluster, version):
        found = tuple(registry.examine(await facts.gather(cluster, version)))
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(Report(__version__, found))).decode())
    else:
        readable.make_plain(sys.stdout)
        print(*findings.lines(found), sep="\n")
    return findings.exit_code(found)
