"""Assembling a rank table and ranks from device annotations, or refusing with the pod's name."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_operator.ranktable import annotations, assembly
from resnetboost_operator.ranktable.annotations import KEYS, BoundPod, Refusal
from resnetboost_operator.ranktable.assembly import Built
from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.tables import RankList, ServerTable
from support.examples import examples
from support.gangs import gang, pod, super_pod, told


def servers(built: Built) -> dict[str, list[tuple[str, str | None, str]]]:
    assert isinstance(built.table, ServerTable)
    return {
        server.server_id: [(device.device_id, device.device_ip, device.rank_id) for device in server.device]
        for server in built.table.server_list
    }


def test_pods_of_a_node_become_one_server_and_the_node_of_index_0_comes_first() -> None:
    built = assembly.build(
        [
            pod(0, "worker-b", 5, "10.0.2.5"),
            pod(1, "worker-a", 1, "10.0.1.1"),
            pod(2, "worker-b", 4, "10.0.2.4"),
            pod(3, "worker-a", 0, "10.0.1.0"),
        ],
        "910A",
    )
    assert servers(built) == {
        "0-worker-b": [("4", "10.0.2.4", "0"), ("5", "10.0.2.5", "1")],
        "1-worker-a": [("0", "10.0.1.0", "2"), ("1", "10.0.1.1", "3")],
    }
    assert built.ranks == (1, 3, 0, 2)
    assert built.devices == (5, 1, 4, 0)


def test_the_bytes_are_compact_and_every_value_is_text() -> None:
    assert assembly.build([pod(0, "n", 3, "10.0.0.3")], "910B").data == (
        b'{"version":"1.0","status":"completed","server_count":"1","server_list":'
        b'[{"server_id":"0-n","device":[{"device_id":"3","device_ip":"10.0.0.3","rank_id":"0"}]}]}'
    )


def test_dictionary_order_of_the_servers_is_that_of_the_ranks_also_for_many() -> None:
    built = assembly.build(gang(11, 1), "910B")
    names = list(servers(built))
    assert names == sorted(names)
    assert names[0] == "00-node-00000"
    assert checking.judge_bytes(built.data, "910B").findings == ()


def test_a_long_node_name_is_cut_to_a_server_id() -> None:
    built = assembly.build([pod(0, "n" * 253, 0, "10.0.0.1"), pod(1, "n" * 252 + "m", 0, "10.0.0.2")], "910B")
    assert [len(name) for name in servers(built)] == [64, 64]


def test_host_ip_is_there_only_on_the_hosts_network() -> None:
    pods = [pod(0, "a", 0, "10.0.0.1"), pod(1, "a", 1, "10.0.0.2")]
    assert b"host_ip" not in assembly.build(pods, "910B").data
    assert b'"host_ip":"10.0.0.5"' in assembly.build(pods, "910B", host_network=True).data


def test_one_node_needs_no_addresses() -> None:
    built = assembly.build([pod(0, "a", 0), pod(1, "a", 1)], "910B")
    assert servers(built) == {"0-a": [("0", None, "0"), ("1", None, "1")]}


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({"pod_name": "job-base-0-0", "server_id": "10.0.0.5"}, id="three fields, as in 2020"),
        pytest.param(told("job-base-0-0", 2, "10.0.0.2"), id="as today"),
        pytest.param({"pod_name": "job-base-0-0", "new_field": {"a": [1]}}, id="with a field of tomorrow"),
    ],
)
def test_every_form_of_the_annotation_is_read(written: dict[str, Any]) -> None:
    written = written | {"devices": [{"device_id": "2", "device_ip": "10.0.0.2"}]}
    found = BoundPod("job-base-0-0", 0, "a", {KEYS[0]: json.dumps(written)})
    assert servers(assembly.build([found], "910A")) == {"0-a": [("2", "10.0.0.2", "0")]}


def test_super_pods_stay_together_and_the_one_of_index_0_comes_first() -> None:
    places = [("d", 1, 3), ("a", 0, 0), ("c", 1, 1), ("b", 0, 2)]
    pods = [
        super_pod(index, node, 0, pod_id, sdid, f"10.0.0.{index + 1}")
        for index, (node, pod_id, sdid) in enumerate(places)
    ]
    built = assembly.build(pods, "A3")
    assert isinstance(built.table, ServerTable)
    assert built.table.version == "1.2"
    assert list(servers(built)) == ["0-d", "1-c", "2-a", "3-b"]
    told = [
        (found.super_pod_id, [server.server_id for server in found.server_list])
        for found in built.table.super_pod_list or ()
    ]
    assert told == [("1", ["0-d", "1-c"]), ("0", ["2-a", "3-b"])]
    assert checking.judge_bytes(built.data, "A3").findings == ()


def test_inside_one_super_pod_an_address_that_the_plugin_could_not_get_does_not_matter() -> None:
    built = assembly.build([super_pod(0, "a", 0, 3, 10, "-1"), super_pod(1, "b", 0, 3, 11)], "A3")
    assert b"device_ip" not in built.data


def test_an_a3_outside_super_pods_gets_version_1_0() -> None:
    built = assembly.build([pod(0, "a", 0, "10.0.0.1"), pod(1, "b", 0, "10.0.0.2")], "A3")
    assert isinstance(built.table, ServerTable)
    assert (built.table.version, built.table.super_pod_list) == ("1.0", None)


def layer(
    number: int, address: str, kind: str = "EID", network: str = "UB", ports: Sequence[str] = ("0/1",)
) -> dict[str, Any]:
    element = {"net_layer": number, "net_instance_id": f"instance-{number}", "net_type": "", "net_attr": ""}
    element |= {"rank_addr_list": [{"addr_type": kind, "addr": address, "ports": ports, "plane_id": "plane0"}]}
    return {"level": number, "info": {network: element}}


def newest(index: int, node: str, device: int, ports: Sequence[str] = ("0/1",)) -> BoundPod:
    levels = [
        layer(3, f"10.0.{index}.1", "IPV4", "ROCE", ports),
        layer(0, f"{index:032x}"),
        layer(2, f"{index:032x}", network="UBG"),
    ]
    devices = [{"device_id": str(device), "device_ip": "", "levelList": levels}]
    return pod(index, node, device, key=KEYS[1], devices=devices)


def test_a_950_gets_version_2_0_with_one_entry_for_each_layer() -> None:
    built = assembly.build([newest(0, "b", 1), newest(1, "a", 0), newest(2, "b", 0)], "950")
    assert isinstance(built.table, RankList)
    assert built.ranks == (1, 2, 0)
    assert [(rank.rank_id, rank.device_id, rank.local_id) for rank in built.table.rank_list] == [
        (0, 0, 0),
        (1, 1, 1),
        (2, 0, 0),
    ]
    assert [(level.net_layer, level.net_type) for level in built.table.rank_list[0].level_list] == [
        (0, "TOPO_FILE_DESC"),
        (3, "CLOS"),
    ]
    assert checking.judge_bytes(built.data, "950").findings == ()


def annotated(index: int, text: str) -> BoundPod:
    return BoundPod(f"job-base-0-{index}", index, "a", {KEYS[0]: text})


TWO = json.dumps(told("job-base-0-0", 0, "") | {"devices": [{"device_id": "0"}, {"device_id": "1"}]})


@pytest.mark.parametrize(
    ("pods", "chip", "names", "words"),
    [
        pytest.param(
            [BoundPod("p", 0, "a", {})], "910B", ("p",), f"has no annotation {KEYS[0]} yet", id="not written yet"
        ),
        pytest.param([BoundPod("p", 0, "", {})], "910B", ("p",), "has no node yet", id="not bound yet"),
        pytest.param(
            [annotated(0, "{")], "910B", ("job-base-0-0",), "cannot be read: Input data was truncated", id="half"
        ),
        pytest.param([annotated(0, "[]")], "910B", ("job-base-0-0",), "Expected `object`", id="a list"),
        pytest.param([annotated(0, "[" * 9999)], "910B", ("job-base-0-0",), "cannot be read", id="deep"),
        pytest.param([annotated(0, '"' + "x" * 300_000)], "910B", ("job-base-0-0",), "300001 bytes", id="huge"),
        pytest.param(
            [annotated(0, '{"devices": null}')], "910B", ("job-base-0-0",), 'the devices "none"', id="no device"
        ),
        pytest.param([annotated(0, TWO)], "910B", ("job-base-0-0",), 'the devices "0, 1"', id="two devices"),
        pytest.param([pod(0, "a", 0, pod_name="other")], "910B", ("job-base-0-0",), "another pod's", id="a copied one"),
        pytest.param([pod(0, "a", -1)], "910B", ("job-base-0-0",), 'device_id "-1"', id="a device that is none"),
        pytest.param([pod(0, "a", 8)], "910A", ("job-base-0-0",), "HCCL_E_PARA", id="a device that a 910A has not"),
        pytest.param(
            [pod(0, "a", 0, "10.0.0.1"), pod(1, "b", 0, "-1")],
            "910B",
            ("job-base-0-1",),
            'EI0014 HCCL_E_PARA "a valid IP address"',
            id="an address that the plugin could not get",
        ),
        pytest.param(
            [pod(0, "a", 0, "10.0.0.1"), pod(1, "b", 0)],
            "910B",
            ("job-base-0-1",),
            "EI0014",
            id="an address that is missing",
        ),
        pytest.param(
            [super_pod(0, "a", 0, 1, 5, "10.0.0.1"), super_pod(1, "b", 0, 2, 5)],
            "A3",
            ("job-base-0-1",),
            "device_ip with several servers",
            id="an address that is missing between super pods",
        ),
        pytest.param(
            [pod(0, "a", 0, "10.0.0.1"), pod(1, "b", 0, "10.0.0.1")],
            "910B",
            ("job-base-0-1",),
            '"IP" is repeate',
            id="an address twice",
        ),
        pytest.param(
            [pod(0, "a", 0, "10.0.0.1"), pod(1, "a", 0, "10.0.0.2")],
            "910B",
            ("job-base-0-1",),
            "device_id unique on its server",
            id="a device twice",
        ),
        pytest.param(
            [pod(0, "a", 3, "10.0.0.1"), pod(1, "a", 4, "10.0.0.2")],
            "910A",
            ("job-base-0-0", "job-base-0-1"),
            "one HCCS ring",
            id="two rings of a 910A",
        ),
        pytest.param(
            [pod(0, "a", 0, "10.0.0.1"), pod(1, "a", 1, "10.0.0.2"), pod(2, "b", 0, "10.0.0.3")],
            "910A",
            ("job-base-0-0", "job-base-0-1"),
            "as many devices on each server",
            id="unequal servers of a 910A",
        ),
        pytest.param(
            [super_pod(0, "a", 0, 1, 5), pod(1, "b", 0, "10.0.0.1")],
            "A3",
            ("job-base-0-1",),
            "HCCL_E_PARA",
            id="one pod outside the super pods",
        ),
        pytest.param(
            [newest(0, "a", 0), newest(1, "a", 0)],
            "950",
            ("job-base-0-0", "job-base-0-1"),
            "both have device 0",
            id="a device twice on a 950",
        ),
        pytest.param([pod(0, "a", 0, key=KEYS[1])], "950", ("job-base-0-0",), "HCCL_E_PARA", id="a 950 without layers"),
        pytest.param(
            [pod(1, "a", 0)], "910B", ("job-base-0-1",), "0 is the next that is missing", id="an index missing"
        ),
        pytest.param(
            [pod(0, "a", 0), pod(0, "a", 1)], "910B", ("job-base-0-0",), "has the index 0", id="an index twice"
        ),
        pytest.param([], "910B", ("none",), "at least one pod", id="nobody"),
    ],
)
def test_a_refusal_names_the_pods_and_the_error(
    pods: list[BoundPod], chip: Chip, names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(Refusal) as caught:
        assembly.build(pods, chip)
    assert caught.value.pods == names
    assert words in str(caught.value)
    assert str(caught.value).startswith(("pod ", "pods "))


@pytest.mark.parametrize("chip", ["910A", "A3"])
def test_the_hosts_network_is_no_substitute_for_addresses_that_the_plugin_could_not_read(chip: Chip) -> None:
    with pytest.raises(Refusal, match="the network cards of the hosts"):
        assembly.build([pod(0, "a", 0), pod(1, "b", 0)], chip, host_network=True)


def test_a_refusal_names_only_the_first_pods() -> None:
    with pytest.raises(Refusal, match=r"^pods job-base-0-0, job-base-0-1, job-base-0-2 and 3 more: "):
        assembly.build([pod(index, "a", index, f"10.0.0.{index}") for index in range(6)], "910A")


def test_pods_without_an_annotation_are_listed() -> None:
    assert annotations.missing((pod(0, "a", 0), BoundPod("late", 1, "a", {"other": ""}))) == ("late",)


ADDRESSES = st.sampled_from(["", "-1", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "fd00::1", "fd00::2", "x"])
places = st.tuples(
    st.sampled_from(["a", "b", "c"]), st.integers(0, 9), ADDRESSES, st.sampled_from([-1, 0, 1]), st.integers(-2, 6)
)


def placed(index: int, place: tuple[str, int, str, int, int]) -> BoundPod:
    node, device, address, pod_id, super_device = place
    return super_pod(index, node, device, pod_id, super_device, address)


@examples(300)
@given(st.lists(places, min_size=1, max_size=8), st.sampled_from(["910A", "910B", "A3", "950"]), st.randoms())
def test_any_annotations_in_any_order_give_one_valid_table_or_one_refusal(
    found: list[tuple[str, int, str, int, int]], chip: Chip, chance: random.Random
) -> None:
    pods = [placed(index, place) for index, place in enumerate(found)]
    shuffled = chance.sample(pods, len(pods))
    assert outcome(pods, chip) == outcome(shuffled, chip)


good = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@examples(100)
@given(good, st.sampled_from(["910B", "A3"]), st.randoms())
def test_any_placement_of_good_devices_gives_a_table(counts: list[int], chip: Chip, chance: random.Random) -> None:
    spots = [(node, device) for node, count in enumerate(counts) for device in range(count)]
    chance.shuffle(spots)
    pods = [pod(index, f"n{node}", device, f"10.0.{node}.{device}") for index, (node, device) in enumerate(spots)]
    built = assembly.build(pods, chip)
    assert sorted(built.ranks) == list(range(len(pods)))
    by_rank = sorted(zip(built.ranks, (found.node for found in pods), built.devices, strict=True))
    nodes = [node for _, node, _ in by_rank]
    assert nodes[0] == pods[0].node
    assert sum(before != after for before, after in pairwise(nodes)) == len(counts) - 1


# For each chip, the sets of devices of one node that a scheduler may allocate.
NODES: dict[Chip, st.SearchStrategy[tuple[int, ...]]] = {
    "910A": st.sampled_from([(0,), (7,), (1, 3), (4, 5), (0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8))]),
    "910B": st.sets(st.integers(0, 15), min_size=1).map(lambda found: tuple(sorted(found))),
    "A3": st.sets(st.integers(0, 15), min_size=1).map(lambda found: tuple(sorted(found))),
    "950": st.sets(st.integers(0, 63), min_size=1, max_size=8).map(lambda found: tuple(sorted(found))),
}
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True)


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[BoundPod], Chip, bool]:
    """Gangs of any number of pods on nodes of one kind, as a correct scheduler and device plugin place them."""
    chip: Chip = draw(st.sampled_from(["910A", "910B", "A3", "950"]))
    nodes = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    first = draw(NODES[chip])
    held = [draw(NODES[chip].filter(lambda ids: chip != "910A" or len(ids) == len(first))) for _ in nodes]
    super_pods = draw(st.lists(st.integers(0, 2), min_size=len(nodes), max_size=len(nodes)))
    in_super_pods = chip == "A3" and draw(st.booleans())
    needed = len(set(super_pods)) > 1 if in_super_pods else len(nodes) > 1
    base = draw(st.sampled_from(["10.{}.{}.{}", "fd00::{:x}:{:x}:{:x}"])) if needed or draw(st.booleans()) else ""
    spots = draw(st.permutations([(node, device) for node, ids in enumerate(held) for device in ids]))
    pods = [
        bound(index, nodes, at, base, super_pods[at[0]] if in_super_pods else -1, chip)
        for index, at in enumerate(spots)
    ]
    return pods, chip, draw(st.booleans())


def bound(index: int, nodes: list[str], at: tuple[int, int], base: str, super_pod_id: int, chip: Chip) -> BoundPod:
    node, device = at
    if chip == "950":
        return newest(index, nodes[node], device, ports=["d2h"])
    address = base.format(node, device, 1)
    if super_pod_id < 0:
        return pod(index, nodes[node], device, address)
    return super_pod(index, nodes[node], device, super_pod_id, 16 * node + device, address)


@examples(100)
@given(gangs())
def test_every_table_of_a_valid_placement_passes_our_check(
    found: tuple[list[BoundPod], Chip, bool],
) -> None:
    pods, chip, host_network = found
    built = assembly.build(pods, chip, host_network=host_network)
    verdict = checking.judge_bytes(built.data)
    assert chip in verdict.accepted
    allowed = {rules.DEVICE_IP_ADVISED, rules.COUNT_910B, rules.COUNT_A3}
    assert {finding.rule for finding in verdict.findings if chip in finding.chips} <= allowed


def outcome(pods: list[BoundPod], chip: Chip) -> object:
    """The table's bytes and the ranks, checked for validity, or the refusal."""
    try:
        built = assembly.build(pods, chip)
    except Refusal as refusal:
        assert refusal.pods
        return str(refusal)
    assert chip in checking.judge_bytes(built.data).accepted
    assert sorted(built.ranks) == list(range(len(pods)))
    return built.data, built.ranks


@examples(200)
@given(
    st.text(max_size=200)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_nonsense_in_an_annotation_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="job-base-0-0"):
        assembly.build([annotated(0, text)], "910B")


@pytest.mark.slow
def test_13000_devices_make_one_table_in_whatever_order_pods_come() -> None:
    pods = gang(1625, 8)
    built = assembly.build(pods, "910A")
    assert len(built.ranks) == 13_000
    assert built == assembly.build([replace(found) for found in reversed(pods)], "910A")
