"""Ports: whether those that ranks listen on are free."""

from collections.abc import Iterator

from resnetboost_api import findings, names
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject

PORTS = {"metrics": names.PORT_METRICS, "launcher": names.PORT_LAUNCHER, "coordinator": names.PORT_COORDINATOR}
# A local run takes addresses of its own; one that no run claims, because they begin with .0.1.
HERE, ELSEWHERE = "127.0.0.1", "127.254.254.253"


def check(subject: Subject) -> Iterator[Finding]:
    """A port that is taken on all addresses stops every local run; one of 127.0.0.1 only a rank started by hand."""
    taken = {what: port for what, port in PORTS.items() if not subject.host.binds(HERE, port)}
    for what, port in taken.items():
        if subject.host.binds(ELSEWHERE, port):
            message = f"port {port} ({what}) is taken at {HERE}"
            yield findings.warning("ports", message, "local runs use other addresses; a rank started by hand cannot")
        else:
            message = f"port {port} ({what}) is taken on all addresses"
            yield findings.problem("ports", message, f"end the program that listens: ss -ltnp 'sport = :{port}'")
    free = [f"{port} ({what})" for what, port in PORTS.items() if what not in taken]
    if free:
        yield findings.ok("ports", f"free: {', '.join(free)}")
