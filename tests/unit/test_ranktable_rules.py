"""Rank-table rules: one change to a valid table breaks exactly one rule, reported for the right device."""

import copy
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.ranktable.check.rules import Rule
from resnetboost_operator.ranktable.chips import Chip

TABLES = Path(__file__).parents[1] / "ranktables"
Change = Callable[[Any], object]


def table(name: str) -> Any:
    return json.loads((TABLES / name).read_bytes())


def servers(*devices: tuple[int, ...]) -> Any:
    """A version 1.0 table with these devices on each server."""
    rank, found = 0, []
    for index, ids in enumerate(devices):
        held = []
        for device in ids:
            address = f"10.0.{index}.{device}"
            held.append({"device_id": str(device), "device_ip": address, "rank_id": str(rank)})
            rank += 1
        found.append({"server_id": f"node_{index}", "device": held})
    return {"version": "1.0", "server_count": str(len(found)), "server_list": found, "status": "completed"}


def device(found: Any, server: int = 0, index: int = 0) -> Any:
    return found["server_list"][server]["device"][index]


def set_device(server: int, index: int, **values: object) -> Change:
    return lambda found: device(found, server, index).update(values)


def set_server(server: int, **values: object) -> Change:
    return lambda found: found["server_list"][server].update(values)


def without_ips(found: Any) -> None:
    for server in found["server_list"]:
        for each in server["device"]:
            each.pop("device_ip")


def swap_ranks(found: Any) -> None:
    first, second = device(found, 0, 1), device(found, 1, 0)
    first["rank_id"], second["rank_id"] = second["rank_id"], first["rank_id"]


def broken(found: Any, chip: Chip) -> list[Rule]:
    return list(dict.fromkeys(finding.rule for finding in checking.check(found, chip)))


CONCISE: dict[str, tuple[Change, Chip, list[Rule]]] = {
    "no status": (lambda t: t.pop("status"), "910B", [rules.STATUS]),
    "a status that is no text": (lambda t: t.update(status=1), "910B", [rules.NOT_TEXT]),
    "a table that is not finished": (lambda t: t.update(status="initializing"), "910B", [rules.NOT_COMPLETED]),
    "a version nobody knows": (lambda t: t.update(version="3.0"), "910B", [rules.VERSION]),
    "no version": (lambda t: t.pop("version"), "910B", [rules.VERSION_MISSING]),
    "a version that is a number": (lambda t: t.update(version=1.0), "910B", [rules.VERSION_TYPE]),
    "the heterogeneous version": (lambda t: t.update(version="1.1"), "910B", [rules.HETEROGENEOUS]),
    "the newest version on an older chip": (lambda t: t.update(version="2.0"), "910B", [rules.VERSION]),
    "an older version on the newest chip": (lambda t: None, "950", [rules.V2_OLDER]),
    "a version that is null, on the newest chip": (lambda t: t.update(version=None), "950", [rules.V2_TYPE]),
    "no server list": (lambda t: t.pop("server_list"), "910B", [rules.MISSING_LIST, rules.SERVER_COUNT]),
    "a server list that is text": (lambda t: t.update(server_list="x"), "910B", [rules.EMPTY_LIST, rules.SERVER_COUNT]),
    "a count that is a number": (lambda t: t.update(server_count=2), "910B", [rules.NOT_TEXT]),
    "a count that is wrong": (lambda t: t.update(server_count="3"), "910B", [rules.SERVER_COUNT]),
    "a count that is no number": (lambda t: t.update(server_count="two"), "910B", [rules.NOT_NUMBER]),
    "no count": (lambda t: t.pop("server_count"), "910B", [rules.SERVER_COUNT_MISSING]),
    "no server id": (lambda t: t["server_list"][0].pop("server_id"), "910B", [rules.MISSING]),
    "an empty server id": (set_server(0, server_id=""), "910B", [rules.SERVER_ID_EMPTY]),
    "a server id of 65 characters": (set_server(1, server_id="x" * 65), "910B", [rules.SERVER_ID_LONG]),
    "a server id of 64 characters": (set_server(1, server_id="x" * 64), "910B", []),
    "a repeated server id": (set_server(1, server_id="node_0"), "910B", [rules.SERVER_ID_REPEATED]),
    "a masked server id": (set_server(0, server_id="10.*.*.*"), "910B", []),
    "a host ip": (set_server(0, host_ip="172.16.0.100"), "910B", []),
    "a host ip that is none": (set_server(0, host_ip="node"), "910B", [rules.HOST_IP]),
    "an empty host ip": (set_server(0, host_ip=""), "910B", [rules.HOST_IP]),
    "a host ip that is nobody's": (set_server(0, host_ip="0.0.0.0"), "910B", [rules.HOST_NOTHING]),
    "a host ip of the host itself": (set_server(0, host_ip="127.0.0.1"), "910B", [rules.ADDRESS_ODD]),
    "host ips of two families": (
        lambda t: (set_server(0, host_ip="10.0.0.1")(t), set_server(1, host_ip="fd00::1")(t)),
        "910B",
        [rules.HOST_FAMILY],
    ),
    "fields HCCL does not read": (set_server(0, host_nic_ip="reserve", pod_ip=7, hardware_type=None), "910B", []),
    "no devices": (lambda t: t["server_list"][1].update(device=[]), "A3", [rules.EMPTY_LIST]),
    "a device that is no object": (
        lambda t: t["server_list"][1]["device"].__setitem__(1, "x"),
        "A3",
        [rules.NOT_OBJECT],
    ),
    "a server that is null": (
        lambda t: t["server_list"].__setitem__(1, None),
        "A3",
        [rules.NOT_OBJECT],
    ),
    "a device id that is a number": (set_device(0, 0, device_id=0), "910B", [rules.NOT_TEXT]),
    "a repeated device": (set_device(0, 1, device_id="0"), "910B", [rules.DEVICE_ID_REPEATED]),
    "device 8 on a 910A": (set_device(1, 1, device_id="8"), "910A", [rules.DEVICE_ID_RANGE, rules.RING_910A]),
    "device 8 on a 910B": (set_device(1, 1, device_id="8"), "910B", []),
    "device 16 on a 910B": (set_device(1, 1, device_id="16"), "910B", [rules.DEVICE_ID_RANGE]),
    "no device ip on a 910B": (lambda t: device(t).pop("device_ip"), "910B", [rules.DEVICE_IP_MISSING]),
    "an empty device ip on a 910A": (set_device(0, 0, device_ip=""), "910A", [rules.DEVICE_IP_REQUIRED]),
    "no device ip on a 910A": (lambda t: device(t).pop("device_ip"), "910A", [rules.DEVICE_IP_MISSING]),
    "no device ip on an A3": (lambda t: device(t).pop("device_ip"), "A3", [rules.DEVICE_IP_REQUIRED]),
    "a device ip that is a number": (set_device(0, 0, device_ip=7), "910A", [rules.NOT_TEXT]),
    "a masked device ip": (set_device(0, 0, device_ip="192.1.*.6"), "910B", [rules.DEVICE_IP]),
    "the plugin's word for no address": (set_device(0, 0, device_ip="-1"), "910B", [rules.DEVICE_IP]),
    "the address of nobody": (set_device(0, 0, device_ip="0.0.0.0"), "910B", [rules.DEVICE_IP]),
    "the IPv6 address of nobody, which HCCL takes": (
        lambda t: [set_device(s, d, device_ip=f"::{2 * s + d:x}")(t) for s in (0, 1) for d in (0, 1)],
        "910B",
        [rules.ADDRESS_ODD],
    ),
    "a multicast address": (set_device(0, 0, device_ip="224.0.0.1"), "910B", [rules.ADDRESS_ODD]),
    "the broadcast address": (set_device(0, 0, device_ip="255.255.255.255"), "910B", [rules.ADDRESS_ODD]),
    "an address with zeros in front": (set_device(0, 0, device_ip="192.168.001.8"), "910B", [rules.DEVICE_IP]),
    "a repeated device ip": (set_device(1, 1, device_ip="192.168.1.8"), "910B", [rules.DEVICE_IP_REPEATED]),
    "an address written in two ways": (
        lambda t: (
            [set_device(s, d, device_ip=f"fd00::{s}:{d}:1")(t) for s in (0, 1) for d in (0, 1)]
            and set_device(1, 1, device_ip="fd00::0:0:0:1")(t)
        ),
        "910B",
        [rules.DEVICE_IP_SAME],
    ),
    "two families of device ips": (set_device(1, 1, device_ip="fd00::1"), "910B", [rules.DEVICE_FAMILY]),
    "two addresses of one device": (set_device(0, 1, device_ip="10.0.0.1,10.0.0.2"), "910B", [rules.DEVICE_IP_COUNT]),
    "a space behind the comma": (
        lambda t: (
            [set_device(s, d, device_ip=f"10.{s}.{d}.1,10.{s}.{d}.2")(t) for s in (0, 1) for d in (0, 1)]
            and set_device(0, 0, device_ip="10.0.0.1, 10.0.0.2")(t)
        ),
        "910B",
        [rules.DEVICE_IP],
    ),
    "a comma at the end": (set_device(0, 0, device_ip="10.0.0.1,"), "910B", []),
    "port 0": (set_device(0, 0, device_port="0"), "910B", [rules.PORT]),
    "port 65536": (set_device(0, 0, host_port="65536"), "910B", [rules.PORT]),
    "the last port": (set_device(0, 0, host_port="65535"), "910B", []),
    "port 1": (set_device(0, 0, device_port="1"), "910B", [rules.PORT_RESERVED]),
    "a reserved port": (set_device(0, 0, device_port="1023"), "910B", [rules.PORT_RESERVED]),
    "the first port that is free": (set_device(0, 0, device_port="1024"), "910B", []),
    "a port that is a number": (set_device(0, 0, device_port=16666), "910B", [rules.NOT_TEXT]),
    "a vnic port that is none": (set_device(0, 0, device_port="16666", device_vnic_port="0"), "910B", [rules.PORT]),
    "a vnic port that HCCL does not read without the other": (set_device(0, 0, device_vnic_port="0"), "910B", []),
    "network cards of the hosts": (
        lambda t: [set_device(s, d, net_position="host")(t) for s in (0, 1) for d in (0, 1)],
        "910B",
        [rules.HOST_NIC],
    ),
    "the network card of a host that has none": (set_device(1, 1, net_position="host"), "A3", [rules.HOST_NIC]),
    "network cards of hosts with their addresses": (
        lambda t: (
            [set_server(s, host_ip=f"10.1.1.{s + 1}")(t) for s in (0, 1)]
            and set_device(1, 1, net_position="host", net_protocol="tcp")(t)
        ),
        "910B",
        [],
    ),
    "a place that no network card has": (set_device(0, 0, net_position="Host"), "910B", [rules.CARD_WORD]),
    "one host port twice": (
        lambda t: (set_device(0, 0, host_port="6000")(t), set_device(0, 1, host_port="6000")(t)),
        "910B",
        [rules.HOST_PORT_SHARED],
    ),
    "no rank": (lambda t: device(t).pop("rank_id"), "910B", [rules.MISSING]),
    "a rank that is a number": (set_device(0, 0, rank_id=0), "910B", [rules.NOT_TEXT]),
    "a rank that is no number": (set_device(0, 0, rank_id="-1"), "910B", [rules.RANK_ID]),
    "a rank with something behind it": (set_device(0, 0, rank_id="0 "), "910B", [rules.LOOSE_NUMBER]),
    "a rank of many zeros": (set_device(0, 0, rank_id="0" * 20), "910B", []),
    "the negative of nothing": (set_device(0, 0, rank_id="-0"), "910B", [rules.LOOSE_NUMBER]),
    "a rank in digits of another script": (set_device(0, 0, rank_id="\u0660"), "910B", [rules.RANK_ID]),
    "a number of 32 bits": (set_device(1, 1, rank_id="4294967295"), "910B", [rules.RANKS]),
    "a number of 33 bits": (set_device(0, 0, rank_id="4294967296"), "910B", [rules.RANK_ID]),
    "a rank of too many digits": (set_device(0, 0, rank_id="1" * 5000), "910B", [rules.RANK_ID]),
    "a rank twice": (set_device(1, 1, rank_id="2"), "910B", [rules.RANKS]),
    "a rank too high": (set_device(1, 1, rank_id="4"), "910B", [rules.RANKS]),
    "ranks that interleave": (swap_ranks, "910B", [rules.INTERLEAVED]),
    "servers against the order of their names": (set_server(0, server_id="node_2"), "910B", [rules.SERVER_ORDER]),
}


@pytest.mark.parametrize(("change", "chip", "expected"), CONCISE.values(), ids=CONCISE.keys())
def test_one_change_of_a_good_table_breaks_one_rule(change: Change, chip: Chip, expected: list[Rule]) -> None:
    found = table("hccl_doc_910_v1_4p.json")
    change(found)
    assert broken(found, chip) == expected


@pytest.mark.parametrize(
    ("devices", "chip", "expected"),
    [
        pytest.param([(0,)], "910A", [], id="one device of a 910A"),
        pytest.param([(2, 3)], "910A", [], id="two devices of a ring"),
        pytest.param([(3, 4)], "910A", [rules.RING_910A], id="two devices of both rings"),
        pytest.param([(3, 4)], "910B", [], id="two devices of a 910B, which has no rings"),
        pytest.param([(0, 1, 2)], "910A", [rules.COUNT_910A], id="three devices of a 910A"),
        pytest.param([tuple(range(6))], "910A", [rules.COUNT_910A], id="six devices of a 910A"),
        pytest.param([(0, 1, 2)], "910B", [], id="three devices of a 910B"),
        pytest.param([(4, 5, 6, 7)], "910A", [], id="four devices of a ring"),
        pytest.param([(2, 3, 4, 5)], "910A", [rules.SET_910A], id="four devices that HCCL's parser refuses"),
        pytest.param([(0, 2, 4, 6)], "910A", [rules.SET_910A_CROSSING], id="four devices of both rings that it takes"),
        pytest.param([(2, 3, 4, 5)], "A3", [], id="any four devices of an A3"),
        pytest.param([tuple(range(8))], "910A", [], id="eight devices"),
        pytest.param([(0, 1), (0,)], "910A", [rules.EQUAL_COUNTS], id="unequal servers of a 910A"),
        pytest.param([(0, 1), (0,)], "910B", [], id="unequal servers of a 910B"),
        pytest.param([(0, 1), (0,)], "A3", [], id="unequal servers of an A3"),
        pytest.param([tuple(range(16))], "910B", [], id="sixteen devices of one 910B server"),
        pytest.param([tuple(range(9))] * 2, "910B", [rules.COUNT_910B], id="more than eight on several 910B servers"),
        pytest.param([(0, 1, 2)], "A3", [rules.COUNT_A3], id="half an NPU of an A3"),
        pytest.param([tuple(range(16))] * 3, "A3", [], id="three whole A3 servers"),
    ],
)
def test_which_devices_of_a_server_may_work_together(
    devices: list[tuple[int, ...]], chip: Chip, expected: list[Rule]
) -> None:
    assert broken(servers(*devices), chip) == expected


def test_four_devices_of_a_910a_are_a_ring_or_two_pairs_that_mirror_each_other() -> None:
    taken = {four for four in combinations(range(8), 4) if rules.SET_910A not in broken(servers(four), "910A")}
    rings = {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert taken == rings | {(a, b, a + 4, b + 4) for a, b in combinations(range(4), 2)}


@pytest.mark.parametrize(
    ("chip", "expected"), [("910A", [rules.DEVICE_IP_ADVISED]), ("910B", []), ("A3", [])], ids=["910A", "910B", "A3"]
)
def test_one_server_needs_no_device_ip(chip: Chip, expected: list[Rule]) -> None:
    found = servers((0, 1))
    without_ips(found)
    assert broken(found, chip) == expected


def test_hosts_networks_need_every_host() -> None:
    found = servers((0, 1), (0, 1))
    without_ips(found)
    set_server(0, host_ip="10.0.0.1")(found)
    assert rules.HOST_NIC in broken(found, "910A")


@pytest.mark.parametrize(
    ("chip", "expected"),
    [
        pytest.param("910A", [rules.HOST_NETWORK], id="910A"),
        pytest.param("910B", [rules.DEVICE_IP_MISSING], id="910B"),
        pytest.param("A3", [rules.HOST_NETWORK], id="A3"),
    ],
)
def test_hosts_with_addresses_need_no_device_addresses(chip: Chip, expected: list[Rule]) -> None:
    found = servers((0, 1), (0, 1))
    without_ips(found)
    for index in (0, 1):
        set_server(index, host_ip=f"10.1.0.{index + 1}")(found)
    assert broken(found, chip) == expected


FOUR = (0, 2, 4, 6)


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        pytest.param([FOUR, FOUR], [rules.NICS_TRIMMED], id="the same four cards of eight devices"),
        pytest.param([(3,), (3,)], [rules.NICS_TRIMMED], id="the same card of eight devices"),
        pytest.param([FOUR, (0, 1, 2, 3)], [rules.NICS_UNEQUAL], id="other cards on each server"),
        pytest.param([FOUR, tuple(range(8))], [rules.NICS_UNEQUAL], id="fewer cards on one server"),
        pytest.param([(0, 1, 2), (0, 1, 2)], [rules.NICS_UNEQUAL], id="three cards, which do not divide 16 devices"),
        pytest.param([(), ()], [rules.NICS_UNEQUAL], id="no card at all"),
    ],
)
def test_eight_devices_of_a_910a_may_share_fewer_cards(cards: list[tuple[int, ...]], expected: list[Rule]) -> None:
    found = servers(*[tuple(range(8))] * len(cards))
    grouped = {"status": "completed", "group_count": "1", "group_list": [groups(found)]}
    for server, held in enumerate(cards):
        for index in range(8):
            if index not in held:
                device(found, server, index)["device_ip"] = ""
    assert broken(found, "910A") == expected
    assert broken(grouped, "910A") == [rules.OLD_TEMPLATE, *expected]


def groups(found: Any) -> Any:
    """The same servers as instances of a group, with the same devices."""
    instances = [
        {"pod_name": f"pod-{server['server_id']}", "server_id": server["server_id"], "devices": server["device"]}
        for server in found["server_list"]
    ]
    count = sum(len(server["device"]) for server in found["server_list"])
    told = {"group_name": "", "instance_count": str(len(instances)), "device_count": str(count)}
    return told | {"instance_list": instances}


def pods(found: Any) -> Any:
    return found["super_pod_list"]


ALTERNATING = [[{"server_id": "node_0"}, {"server_id": "node_2"}], [{"server_id": "node_1"}, {"server_id": "node_3"}]]
SUPER: dict[str, tuple[Change, Chip, list[Rule]]] = {
    "no count of servers": (lambda t: t.pop("server_count"), "A3", []),
    "no super pods": (lambda t: t.pop("super_pod_list"), "A3", [rules.SERVER_MODE]),
    "super pods on a 910B": (lambda t: None, "910B", [rules.VERSION_CHIP]),
    "an empty list of super pods": (lambda t: t.update(super_pod_list=[]), "A3", [rules.EMPTY_LIST]),
    "no id of a super pod": (lambda t: pods(t)[0].pop("super_pod_id"), "A3", [rules.SUPER_POD_ID]),
    "an id that is a number": (lambda t: pods(t)[0].update(super_pod_id=0), "A3", [rules.NOT_TEXT, rules.SUPER_POD_ID]),
    "a repeated super pod": (
        lambda t: pods(t)[1].update(super_pod_id="0"),
        "A3",
        [rules.SUPER_POD_REPEATED, rules.SUPER_DEVICE_REPEATED],
    ),
    "a server that is not there": (
        lambda t: pods(t)[1]["server_list"][1].update(server_id="node_9"),
        "A3",
        [rules.SUPER_POD_SERVER, rules.SUPER_POD_WITHOUT],
    ),
    "a server in no super pod": (lambda t: pods(t)[1]["server_list"].pop(), "A3", [rules.SUPER_POD_WITHOUT]),
    "a server in two super pods": (
        lambda t: pods(t)[1]["server_list"].append({"server_id": "node_0"}),
        "A3",
        [rules.SUPER_POD_TWICE],
    ),
    "super pods whose servers alternate": (
        lambda t: (
            [pods(t)[index].update(server_list=pair) for index, pair in enumerate(ALTERNATING)],
            [set_device(s, d, super_device_id=str(4 * s + d))(t) for s in range(4) for d in range(4)],
        ),
        "A3",
        [rules.SUPER_POD_SPLIT],
    ),
    "no super device": (lambda t: device(t).pop("super_device_id"), "A3", [rules.SUPER_DEVICE_MISSING]),
    "an empty super device": (
        set_device(0, 0, super_device_id=""),
        "A3",
        [rules.SUPER_DEVICE_ID, rules.SUPER_DEVICE_MISSING],
    ),
    "a repeated super device": (set_device(0, 1, super_device_id="0"), "A3", [rules.SUPER_DEVICE_REPEATED]),
    "the same super device in the other super pod": (lambda t: None, "A3", []),
    "no device ip between super pods": (lambda t: device(t).pop("device_ip"), "A3", [rules.DEVICE_IP_REQUIRED]),
    "a backup that is no address": (set_device(0, 0, backup_device_ip="x"), "A3", [rules.BACKUP_IP]),
    "a backup by itself": (
        set_device(0, 0, backup_device_ip="192.168.1.6"),
        "A3",
        [rules.BACKUP_SELF, rules.BACKUP_IP_REPEATED],
    ),
    "a backup on another NPU": (
        lambda t: (
            set_device(0, 0, backup_device_ip="192.168.1.8")(t),
            set_device(0, 3, backup_device_ip="192.168.1.7")(t),
        ),
        "A3",
        [rules.BACKUP_NPU],
    ),
    "a backup on another server": (
        lambda t: (
            set_device(0, 0, backup_device_ip="192.168.2.7")(t),
            set_device(1, 0, backup_device_ip="192.168.1.7")(t),
        ),
        "A3",
        [rules.BACKUP_SERVER],
    ),
    "a backup outside the table": (set_device(0, 0, backup_device_ip="192.168.9.9"), "A3", []),
    "a backup port without backup": (
        lambda t: (device(t).pop("backup_device_ip"), device(t).update(backup_device_port="0")),
        "A3",
        [],
    ),
    "a super pod that is text": (
        lambda t: pods(t).__setitem__(1, "1"),
        "A3",
        [rules.NOT_OBJECT, rules.SUPER_POD_WITHOUT],
    ),
    "a repeated backup": (set_device(0, 2, backup_device_ip="192.168.1.7"), "A3", [rules.BACKUP_IP_REPEATED]),
    "a backup port in use": (set_device(0, 0, backup_device_port="16666"), "A3", [rules.BACKUP_PORT]),
}


@pytest.mark.parametrize(("change", "chip", "expected"), SUPER.values(), ids=SUPER.keys())
def test_one_change_of_a_good_table_of_super_pods(change: Change, chip: Chip, expected: list[Rule]) -> None:
    found = table("hccl_doc_a3_v12_superpod_16p.json")
    change(found)
    assert broken(found, chip) == expected


def test_one_super_pod_needs_no_device_ip() -> None:
    found = servers((0, 1), (0, 1))
    without_ips(found)
    for number, each in enumerate(device(found, s, d) for s in (0, 1) for d in (0, 1)):
        each["super_device_id"] = str(number)
    names = [{"server_id": server["server_id"]} for server in found["server_list"]]
    found |= {"version": "1.2", "super_pod_list": [{"super_pod_id": "0", "server_list": names}]}
    assert broken(found, "A3") == []


def group(found: Any) -> Any:
    return found["group_list"][0]


def instance(found: Any, index: int = 0) -> Any:
    return group(found)["instance_list"][index]


CLOUD: dict[str, tuple[Change, list[Rule]]] = {
    "no group name": (lambda t: group(t).pop("group_name"), [rules.MISSING]),
    "a wrong count of groups": (lambda t: t.update(group_count="2"), [rules.GROUPS]),
    "no count of groups": (lambda t: t.pop("group_count"), [rules.MISSING]),
    "a wrong count of instances": (lambda t: group(t).update(instance_count="3"), [rules.INSTANCES]),
    "a wrong count of devices": (lambda t: group(t).update(device_count="3"), [rules.INSTANCES]),
    "a repeated pod": (lambda t: instance(t, 1).update(pod_name="tf-bae41"), [rules.POD_REPEATED]),
    "pods of one server": (lambda t: instance(t, 1).update(server_id="node_0"), []),
    "a device twice on one server": (
        lambda t: (instance(t, 1).update(server_id="node_0"), instance(t, 1)["devices"][0].update(device_id="0")),
        [rules.DEVICE_ID_REPEATED],
    ),
    "device 8": (lambda t: instance(t)["devices"][0].update(device_id="8"), [rules.DEVICE_ID_RANGE]),
    "an empty device ip": (lambda t: instance(t)["devices"][0].update(device_ip=""), [rules.DEVICE_IP_REQUIRED]),
    "a repeated device ip": (
        lambda t: instance(t)["devices"][0].update(device_ip="192.168.1.9"),
        [rules.DEVICE_IP_REPEATED],
    ),
    "no server id": (lambda t: instance(t).update(server_id=""), [rules.SERVER_ID_EMPTY]),
    "a group name of 127 bytes": (lambda t: group(t).update(group_name="x" * 127), []),
    "a group name of 128 bytes in 64 characters": (lambda t: group(t).update(group_name="é" * 64), [rules.NAME_LONG]),
    "a pod name of 128 bytes": (lambda t: instance(t).update(pod_name="x" * 128), [rules.NAME_LONG]),
    "the address of nobody": (lambda t: instance(t)["devices"][0].update(device_ip="0.0.0.0"), [rules.DEVICE_IP]),
    "two addresses": (lambda t: instance(t)["devices"][0].update(device_ip="10.0.0.1,10.0.0.2"), [rules.DEVICE_IP]),
    "an address written in two ways": (
        lambda t: [
            instance(t, index)["devices"][0].update(device_ip=written)
            for index, written in enumerate(["fd00::1", "fd00:0::1"])
        ],
        [rules.DEVICE_IP_SAME],
    ),
    "an instance that is text": (
        lambda t: group(t)["instance_list"].__setitem__(1, "x"),
        [rules.NOT_OBJECT, rules.INSTANCES],
    ),
    "two devices and one network card on each server": (
        lambda t: (
            [
                each["devices"].append({"device_id": "2" if index else "1", "device_ip": ""})
                for index, each in enumerate(group(t)["instance_list"])
            ],
            group(t).update(device_count="4"),
        ),
        [rules.NICS_FEWER],
    ),
    "no address in a pod of the one server": (
        lambda t: [
            instance(t, index)["devices"][0].update(device_ip="") or instance(t, index).update(server_id="node_0")
            for index in (0, 1)
        ],
        [rules.DEVICE_IP_ADVISED],
    ),
}


@pytest.mark.parametrize(("change", "expected"), CLOUD.values(), ids=CLOUD.keys())
def test_one_change_of_the_older_template(change: Change, expected: list[Rule]) -> None:
    found = table("hccl_doc_910_group_4p.json")
    change(found)
    assert broken(found, "910A") == [rules.OLD_TEMPLATE, *expected]


LABORATORY: dict[str, tuple[Change, list[Rule]]] = {
    "network cards of the host": (lambda t: t.update(para_plane_nic_location="host"), [rules.NIC_LOCATION]),
    "three devices for a server": (
        lambda t: group(t).update(device_num="3"),
        [rules.LAB_AVERAGE, rules.INSTANCES],
    ),
    "two devices for a rank": (
        lambda t: instance(t)["devices"].append({"device_id": "2", "device_ip": "192.1.27.9"}),
        [rules.LAB_INSTANCE, rules.INSTANCES, rules.RANKS, rules.COUNT_910A],
    ),
    "a rank twice": (lambda t: instance(t).update(rank_id="1"), [rules.RANKS]),
    "no rank": (lambda t: instance(t).pop("rank_id"), [rules.MISSING]),
    "another number of servers": (
        lambda t: group(t).update(server_num="1" if group(t)["server_num"] == "2" else "2"),
        [rules.LAB_SERVERS],
    ),
    "an empty address on its one server": (
        lambda t: instance(t)["devices"][0].update(device_ip=""),
        [rules.DEVICE_IP_ADVISED],
    ),
    "no address on its one server": (lambda t: instance(t)["devices"][0].pop("device_ip"), [rules.MISSING]),
}


@pytest.mark.parametrize(("change", "expected"), LABORATORY.values(), ids=LABORATORY.keys())
def test_one_change_of_the_laboratory_form(change: Change, expected: list[Rule]) -> None:
    found = table("ms_docs_old_group_2p.json")
    change(found)
    assert broken(found, "910A") == [rules.OLD_TEMPLATE, *expected]


def rank(found: Any, index: int = 0) -> Any:
    return found["rank_list"][index]


def level(found: Any, index: int = 0) -> Any:
    return rank(found)["level_list"][index]


def address(found: Any) -> Any:
    return level(found)["rank_addr_list"][0]


def control(*without: str, **values: object) -> Change:
    plane = {"addr_type": "IPV4", "addr": "172.16.0.10", "listen_port": 8000} | values
    return lambda found: rank(found).update(
        control_plane={key: value for key, value in plane.items() if key not in without}
    )


NEWEST: dict[str, tuple[Change, list[Rule]]] = {
    "no status": (lambda t: t.pop("status"), []),
    "a table that is not finished": (lambda t: t.update(status="initializing"), [rules.V2_STATUS]),
    "no version": (lambda t: t.pop("version"), [rules.V2_MISSING]),
    "no count of ranks": (lambda t: t.pop("rank_count"), [rules.V2_MISSING]),
    "a count that is wrong": (lambda t: t.update(rank_count=5), [rules.V2_RANK_COUNT]),
    "a count that is text": (lambda t: t.update(rank_count="4"), [rules.V2_TYPE]),
    "a list of ranks that is none": (lambda t: t.update(rank_list={}), [rules.V2_LIST, rules.V2_RANK_COUNT]),
    "a rank that is text": (lambda t: rank(t).update(rank_id="0"), [rules.V2_TYPE]),
    "a rank that is no whole number": (lambda t: rank(t).update(rank_id=0.5), [rules.V2_LOOSE]),
    "a negative rank": (lambda t: rank(t).update(rank_id=-1), [rules.V2_UINT]),
    "another version": (lambda t: t.update(version="1.0"), [rules.V2_VERSION]),
    "a rank that is null": (lambda t: t["rank_list"].__setitem__(3, None), [rules.V2_NOT_OBJECT]),
    "a rank twice": (lambda t: rank(t).update(rank_id=1), [rules.V2_RANKS]),
    "a rank too high": (lambda t: rank(t).update(rank_id=4), [rules.V2_RANKS]),
    "device 65": (lambda t: rank(t).update(device_id=65), [rules.V2_RANGE]),
    "the spare without whom it replaces": (lambda t: rank(t).update(local_id=64), [rules.V2_MISSING]),
    "the spare of one who is there": (lambda t: rank(t).update(local_id=64, replaced_local_id=1), [rules.V2_BACKUP]),
    "the spare of device 0, which is there": (
        lambda t: rank(t, 1).update(local_id=64, replaced_local_id=0),
        [rules.V2_BACKUP],
    ),
    "the spare of one who is not": (lambda t: rank(t).update(local_id=64, replaced_local_id=5), []),
    "port 0": (lambda t: rank(t).update(device_port=0), [rules.V2_RANGE]),
    "a reserved port": (lambda t: rank(t).update(host_port=80), [rules.PORT_RESERVED]),
    "no layers": (lambda t: rank(t).update(level_list=[]), [rules.V2_LEVELS]),
    "nine layers": (
        lambda t: rank(t).update(level_list=[level(t) | {"net_layer": min(layer, 7)} for layer in range(9)]),
        [rules.V2_LEVELS, rules.V2_LAYERS],
    ),
    "layers that descend": (lambda t: rank(t)["level_list"].reverse(), [rules.V2_LAYERS, rules.V2_FIRST_LAYER]),
    "a layer that HCCL does not have": (lambda t: level(t, 1).update(net_layer=8), [rules.V2_RANGE]),
    "a kind of network nobody knows": (lambda t: level(t).update(net_type="MESH"), [rules.V2_NET_TYPE]),
    "a kind that only the parser knows": (lambda t: level(t).update(net_type="1DMESH"), [rules.V2_NET_TYPE_ADVISED]),
    "no kind of network": (lambda t: level(t).pop("net_type"), [rules.V2_NET_TYPE_ADVISED]),
    "another number of addresses": (lambda t: level(t, 1)["rank_addr_list"].pop(), [rules.V2_ADDRESSES]),
    "a kind of address in small letters": (lambda t: address(t).update(addr_type="IPv4"), [rules.V2_ADDRESS]),
    "an address of another kind": (lambda t: address(t).update(addr_type="IPV6"), [rules.V2_ADDRESS]),
    "an EID": (lambda t: address(t).update(addr_type="EID", addr="0" * 31 + "a"), []),
    "an EID that is too short": (lambda t: address(t).update(addr_type="EID", addr="0" * 31), [rules.V2_ADDRESS]),
    "a plane id of 1024 bytes": (lambda t: address(t).update(plane_id="x" * 1024), []),
    "a plane id of 1025 bytes": (lambda t: address(t).update(plane_id="x" * 1025), [rules.V2_RANGE]),
    "no ports": (lambda t: address(t).update(ports=[]), [rules.V2_PORTS]),
    "ports that are numbers": (lambda t: address(t).update(ports=[1]), [rules.V2_TYPE]),
    "a port without its die": (lambda t: address(t).update(ports=["0"]), [rules.V2_PORT_FORM]),
    "a port of the host": (lambda t: address(t).update(ports=["d2h"]), []),
    "a port of 32 bytes": (lambda t: address(t).update(ports=["1/" + "0" * 30]), []),
    "a port of 33 bytes": (lambda t: address(t).update(ports=["1/" + "0" * 31]), [rules.V2_PORTS]),
    "a port without a name": (lambda t: address(t).update(ports=[""]), [rules.V2_PORTS]),
    "an empty address": (lambda t: address(t).update(addr=""), [rules.V2_ADDRESS_LENGTH]),
    "an address with zeros in front": (lambda t: address(t).update(addr="172.16.000.10"), [rules.V2_ADDRESS]),
    "a broadcast address": (lambda t: address(t).update(addr="255.255.255.255"), [rules.ADDRESS_ODD]),
    "backup addresses": (lambda t: address(t).update(backup_addr=["172.16.9.1", "172.16.9.1"]), []),
    "no backup addresses": (lambda t: address(t).update(backup_addr=[]), []),
    "a backup address outside a list": (
        lambda t: address(t).update(backup_addr="172.16.9.1"),
        [rules.V2_BACKUP_ADDRESS],
    ),
    "a backup address that is null": (lambda t: address(t).update(backup_addr=None), [rules.V2_BACKUP_ADDRESS]),
    "a backup address that is a number": (lambda t: address(t).update(backup_addr=[1]), [rules.V2_BACKUP_ADDRESS]),
    "a backup address of another kind": (
        lambda t: address(t).update(backup_addr=["fd00::1"]),
        [rules.V2_BACKUP_ADDRESS],
    ),
    "17 backup addresses": (
        lambda t: address(t).update(backup_addr=[f"172.16.9.{each}" for each in range(17)]),
        [rules.V2_BACKUP_ADDRESS],
    ),
    "a backup of an EID": (
        lambda t: address(t).update(addr_type="EID", addr="a" * 32, backup_addr=["b" * 32]),
        [rules.V2_BACKUP_ADDRESS],
    ),
    "a control plane": (control(), []),
    "a control plane on the last port": (control(listen_port=65535), []),
    "a control plane on a port that HCCL takes and nobody has": (control(listen_port=65536), [rules.V2_LISTEN_PORT]),
    "a control plane on no port": (control(listen_port=0), [rules.V2_CONTROL_PLANE]),
    "a control plane beyond the ports": (control(listen_port=65537), [rules.V2_CONTROL_PLANE]),
    "a control plane whose port is text": (control(listen_port="8000"), [rules.V2_TYPE]),
    "a control plane without a port": (control("listen_port"), [rules.V2_MISSING]),
    "a control plane without an address": (control("addr"), [rules.V2_MISSING]),
    "a control plane of another kind": (control(addr_type="IPV6"), [rules.V2_CONTROL_PLANE]),
    "a control plane of no kind": (control(addr_type="IP"), [rules.V2_CONTROL_PLANE]),
    "a control plane that is null": (lambda t: rank(t).update(control_plane=None), [rules.V2_NOT_OBJECT]),
    "a detour": (lambda t: t.update(detour="true"), []),
    "a detour that is none": (lambda t: t.update(detour="yes"), [rules.V2_RANGE]),
    "a port under two addresses": (
        lambda t: level(t, 1)["rank_addr_list"][1].update(ports=["0/4"]),
        [rules.V2_PORT_SHARED],
    ),
}


@pytest.mark.parametrize(("change", "expected"), NEWEST.values(), ids=NEWEST.keys())
def test_one_change_of_the_newest_version(change: Change, expected: list[Rule]) -> None:
    found = table("hccl_doc_a5_v2_4p.json")
    change(found)
    assert broken(found, "950") == expected


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (0, "is 0, not from 1 to 65536"),
        (65536, "is 65536, but rank_list has 4"),
        (65537, "is 65537, not from 1 to 65536"),
    ],
)
def test_a_950s_table_has_65536_ranks_at_most(count: int, problem: str) -> None:
    (finding,) = checking.check(table("hccl_doc_a5_v2_4p.json") | {"rank_count": count}, "950")
    assert (finding.place, finding.problem) == ("rank_count", problem)


def test_an_order_error_is_reported_at_the_later_entry() -> None:
    layers = table("hccl_doc_a5_v2_4p.json")
    level(layers, 1)["net_layer"] = 0
    finding = next(finding for finding in checking.check(layers, "950") if finding.rule is rules.V2_LAYERS)
    assert (finding.place, finding.problem) == ("rank_list[0].level_list[1].net_layer", "is 0 after 0")
    named = servers((0,), (0,))
    set_server(0, server_id="node_2")(named)
    (finding,) = checking.check(named, "910B")
    assert (finding.place, finding.problem) == ("server_list[1]", '"node_1" has its ranks after those of "node_2"')


def test_a_finding_names_place_value_rule_error_source_and_remedy() -> None:
    found = table("hccl_doc_910_v1_4p.json")
    set_device(1, 0, rank_id="9")(found)
    (finding,) = checking.check(found, "910B")
    assert str(finding) == (
        "server_list[1].device[0].rank_id is 9, but there are 4 ranks (ranks 0 to N-1; HCCL: EI0014 HCCL_E_PARA "
        '"is less than the communication size N and must be unique"; parser CheckRankListInfo); '
        "number the devices from 0, each number once"
    )


def test_chips_of_one_version_are_told_apart() -> None:
    verdict = checking.judge(servers((2, 3, 4, 5)))
    assert verdict.accepted == ("910B", "A3")
    assert [(finding.rule, finding.chips) for finding in verdict.findings] == [(rules.SET_910A, ("910A",))]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hccl_doc_910_v1_4p", ("910A", "910B", "A3")),
        ("hccl_doc_a5_v2_4p", ("950",)),
        ("hccl_doc_910_group_4p", ("910A",)),
    ],
)
def test_a_table_without_a_version_is_checked_for_its_chips(name: str, expected: tuple[Chip, ...]) -> None:
    found = table(f"{name}.json")
    found.pop("version", None)
    assert checking.judge(found).chips == expected


def test_a_check_does_not_change_the_table() -> None:
    found = table("hccl_doc_a3_v12_superpod_16p.json")
    before = copy.deepcopy(found)
    checking.judge(found)
    assert found == before


@pytest.mark.parametrize(
    ("change", "chip", "error"),
    [
        pytest.param(lambda: servers((0, 1, 2)), "910A", "EI0014", id="three devices of a 910A"),
        pytest.param(lambda: servers(tuple(range(6))), "910A", "EI0014", id="six devices of a 910A"),
        pytest.param(lambda: servers((0,)), "950", "EI0017", id="version 1.0 on a 950"),
        pytest.param(lambda: servers((0,)) | {"version": "2.0"}, "950", "EI0017", id="a 950 without ranks"),
        pytest.param(
            lambda: table("hccl_doc_a5_v2_4p.json") | {"version": "1.0"}, "950", "EI0014", id="2.0 by another name"
        ),
    ],
)
def test_hccl_reports_the_code_of_the_check_at_which_it_stops(
    change: Callable[[], Any], chip: Chip, error: str
) -> None:
    first = next(finding for finding in checking.check(change(), chip) if finding.rule.stops)
    assert first.rule.hccl.startswith(error)


def test_a_table_of_more_than_40_mib_is_for_a_950_only() -> None:
    padding = b" " * (41 << 20)
    older = json.dumps(servers((0,))).encode() + padding
    newest = (TABLES / "hccl_doc_a5_v2_4p.json").read_bytes() + padding
    verdict = checking.judge_bytes(older)
    assert verdict.accepted == ()
    assert [(finding.rule, finding.chips) for finding in verdict.findings] == [(rules.SIZE, ("910A", "910B", "A3"))]
    assert checking.judge_bytes(newest).accepted == ("950",)
    assert checking.judge_bytes(newest + padding, "950").findings[0].rule is rules.UNREAD


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b'{\n"a": 1,\n}', "trailing comma in object in line 3", id="a comma too many"),
        pytest.param(b'{\n\n"a": [1', "it ends too early in line 3", id="half a file"),
        pytest.param(b'\xef\xbb\xbf{\n"a": tru\n}', "in line 2", id="behind a byte order mark"),
        pytest.param(b'{\n"a": "\xff"}', "not UTF-8 text in line 2", id="bytes that are no text"),
    ],
)
def test_invalid_json_is_reported_with_its_line(data: bytes, words: str) -> None:
    (finding,) = checking.judge_bytes(data).findings
    assert words in finding.problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_device(0, 0, rank_id=None), "rank_id is null, not a string"),
        (set_device(0, 0, rank_id=True), "rank_id is true, not a string"),
        (set_device(0, 0, rank_id=["1", None]), 'rank_id is ["1", null], not a string'),
        (
            lambda t: t["server_list"][0]["device"].__setitem__(0, None),
            "server_list[0].device[0] is null, not an object",
        ),
        (lambda t: t.update(status=None), "status is null, not a string"),
        (lambda t: t.update(server_list=None), "server_list is null, not a list"),
    ],
)
def test_values_are_quoted_as_in_the_file(change: Change, words: str) -> None:
    found = table("hccl_doc_910_v1_4p.json")
    change(found)
    told = [str(finding) for finding in checking.check(found, "910A")]
    assert words in told[0]
    assert not any("is missing" in each for each in told)


def test_findings_of_several_chips_stand_in_the_order_of_each() -> None:
    found = servers((0, 16), (0, 1))
    set_device(1, 0, rank_id=None)(found)
    merged = checking.judge(found).findings
    for chip in ("910A", "910B", "A3"):
        own = [(finding.rule, finding.place) for finding in merged if chip in finding.chips]
        assert own == [(finding.rule, finding.place) for finding in checking.check(found, chip)]
