"""Checks which network cards carry the traffic between servers when some devices have no device_ip."""

from collections.abc import Sequence

from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check.findings import Report
from resnetboost_operator.ranktable.check.ranks import Rank, by_server
from resnetboost_operator.ranktable.check.rules import Rule

_FULL = 8  # HCCL_AISERVER_DEVICE_NUM: with as many devices on each server HCCL can spare cards


def check(ranks: Sequence[Rank], report: Report, *, grouped: bool = False) -> None:
    """DetectNicDepoly and CheckNicDeployConsistence, CheckAndAssignNicInfo, then what only the documents say."""
    on_hosts = _on_hosts(ranks)
    if on_hosts is not None:
        _every_host(ranks, on_hosts, report)
    lacking = [rank for rank in ranks if rank.lacks]
    if not lacking:
        return
    hosts_only = on_hosts is not None and not any(rank.addresses for rank in ranks)
    otherwise = _spared(by_server(ranks), grouped) if report.chip == "910A" else rules.DEVICE_IP_REQUIRED
    for rank in lacking:
        on_host = rank.host is not None and (hosts_only or rank.on_host)
        report.add(rules.HOST_NETWORK if on_host else otherwise, f"{rank.place}.device_ip", rank.lacks)


def _on_hosts(ranks: Sequence[Rank]) -> Rank | None:
    """The rank because of which all traffic goes over the hosts' cards; None if there is none."""
    first = min(ranks, key=lambda rank: rank.rank or 0, default=None)
    if first is not None and first.host is not None and not first.addresses:
        return first
    return next((rank for rank in ranks if rank.on_host), None)


def _every_host(ranks: Sequence[Rank], because: Rank, report: Report) -> None:
    for rank in ranks:
        if rank.host is None:
            problem = f"gives no address, but {because.place} is to use the network card of its host"
            report.add(rules.HOST_NIC, f"{rank.server}.host_ip", problem)
            return


def _spared(servers: dict[str, list[Rank]], grouped: bool) -> Rule:
    """What a 910A does with devices without a card."""
    if all(len(held) == _FULL for held in servers.values()):
        return rules.NICS_TRIMMED if _same_cards(servers) else rules.NICS_UNEQUAL
    if grouped and all(any(rank.addresses for rank in held) for held in servers.values()):
        return rules.NICS_FEWER
    return rules.DEVICE_IP_REQUIRED


def _same_cards(servers: dict[str, list[Rank]]) -> bool:
    """Whether each server's process finds the same cards everywhere; a host's address counts for its own devices."""
    total = sum(map(len, servers.values()))
    listed = [{rank.device for rank in held if rank.addresses} for held in servers.values()]
    for held in servers.values():
        own = {rank.device for rank in held if rank.addresses or rank.host is not None}
        if not own or total % len(own):
            return False
        if len(own) < _FULL and any(other and other != own for other in listed):
            return False
    return True
