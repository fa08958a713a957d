"""Queues and gangs: Kueue and gang schedulers, whether they are served and the operator uses them."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator import readable
from resnetboost_operator.cli.doctor.cluster.facts import Facts, Unknown, name, unknown
from resnetboost_operator.observed import capabilities
from resnetboost_operator.scheduling import registry


def check(facts: Facts) -> Iterator[Finding]:
    """What is there and not used is worth a warning, and a Kueue that is asked for and not there too.

    Gangs are scheduled where the cluster can, by default, so that nothing is wrong where it cannot.
    """
    if isinstance(facts.served, Unknown):
        yield from unknown("queues", facts.served)
        return
    yield from _queues(facts, facts.served[capabilities.KUEUE])
    served = [api for api in capabilities.POD_GROUP_APIS if facts.served[api]]
    yield _gangs(served, bool(facts.arguments) and "--gang-scheduling" not in facts.arguments)


def _queues(facts: Facts, served: bool) -> Iterator[Finding]:
    uses, known = "--kueue" in facts.arguments, bool(facts.arguments)
    if not served:
        if uses:
            remedy = "install Kueue, or set kueue.enabled: false"
            message = f"the operator is to use Kueue, and {capabilities.KUEUE} is not served"
            yield findings.warning("queues", message, remedy)
        else:
            yield findings.ok("queues", "no Kueue: jobs start at once, without a queue")
        return
    if known and not uses:
        remedy = "set kueue.enabled: true, if jobs are to wait in its queues"
        yield findings.warning("queues", "Kueue is served, and the operator does not use it", remedy)
    if isinstance(facts.local_queues, Unknown):
        yield from unknown("queues", facts.local_queues)
    elif facts.local_queues:
        found = readable.listed([name(queue) for queue in facts.local_queues])
        yield findings.ok("queues", f"queues of namespace {facts.namespace}: {found}")
    else:
        remedy = "ask for a LocalQueue, or leave the label kueue.x-k8s.io/queue-name out"
        yield findings.warning("queues", f"Kueue has no queue in namespace {facts.namespace}", remedy)


def _gangs(served: list[str], ignored: bool) -> Finding:
    names = [scheduler.name for scheduler in registry.GANG_SCHEDULERS if scheduler.api in served]
    if served and ignored:
        remedy = "set gangScheduling.enabled: true, if pods of a job are to start together"
        return findings.warning(
            "gangs", f"{readable.listed(names)} is served, and the operator does not use it", remedy
        )
    return findings.ok(
        "gangs", f"PodGroups of {readable.listed(names)}" if names else "no gang scheduler: pods start one by one"
    )
