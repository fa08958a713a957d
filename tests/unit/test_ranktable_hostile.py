"""Untrusted rank tables and annotations: every check ends in a result, every command in a sentence."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_operator.cli import main
from resnetboost_operator.ranktable import chips, document, merging, tables
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.ranktable.chips import Chip
from support.examples import examples

TABLES = Path(__file__).parents[1] / "ranktables"
GOOD = [
    json.loads((TABLES / f"{name}.json").read_bytes())
    for name in (
        "hccl_doc_910_v1_4p",
        "hccl_doc_910_group_4p",
        "hccl_doc_a3_v12_superpod_16p",
        "hccl_doc_a5_v2_4p",
        "ms_docs_old_group_2p",
        "hccl_doc_a5_v2_eid_2p",
    )
]


def with_what_no_document_names(tables: list[Any]) -> list[Any]:
    """Two documents with all optional fields that HCCL's parser and MindSpore read."""
    servers, ranks = copy.deepcopy(tables[0]), copy.deepcopy(tables[3])
    for index, server in enumerate(servers["server_list"]):
        server |= {"host_ip": f"10.1.0.{index + 1}", "pod_ip": f"10.2.0.{index + 1}"}
        for each in server["device"]:
            each |= {"device_port": "16666", "device_vnic_port": "16667", "net_position": "host", "net_protocol": "tcp"}
    ranks["detour"] = "true"
    for rank in ranks["rank_list"]:
        rank["control_plane"] = {"addr_type": "IPV4", "addr": "10.3.0.1", "listen_port": 8000}
        for level in rank["level_list"]:
            for address in level["rank_addr_list"]:
                address["backup_addr"] = ["10.4.0.1"]
    return [servers, ranks]


GOOD += with_what_no_document_names(GOOD)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
numbers = ["0", "-0", "-1", "007", "4294967295", "4294967296", "1.0", "2.0", "1e9", "\u0660", "9" * 5000]
addresses = ["10.0.0.1", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "fd00::1%eth0", "%", ","]
words = ["", "d2h", "host", "true", "x" * 128, "é" * 64]
scalars |= st.sampled_from([*numbers, *addresses, *words])
values = (
    scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from(["server_id", "x"]), scalars, max_size=2)
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, ...]] = [at] if at else []
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in found:
        inner += places(each, (*at, key))
    return inner


def changed(value: Any, at: tuple[Any, ...], new: object) -> Any:
    value = copy.deepcopy(value)
    holder = value
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = new
    return value


def without(value: Any, at: tuple[Any, ...]) -> Any:
    value = copy.deepcopy(value)
    holder = value
    for key in at[:-1]:
        holder = holder[key]
    del holder[at[-1]]
    return value


@examples(500)
@given(st.data(), st.sampled_from(GOOD), st.sampled_from(chips.ALL))
def test_any_value_at_any_path_gets_a_result(data: st.DataObject, good: Any, chip: Chip) -> None:
    at = data.draw(st.sampled_from(places(good)))
    found = without(good, at) if data.draw(st.booleans()) else changed(good, at, data.draw(values))
    written = json.dumps(found).encode()
    alone, together = checking.judge_bytes(written, chip), checking.judge_bytes(written)
    for verdict in (alone, together):
        assert all(str(finding).isprintable() and len(str(finding)) < 1500 for finding in verdict.findings)
    if chip in together.chips:
        assert (chip in alone.accepted) == (chip in together.accepted)
        own = [str(finding) for finding in together.findings if chip in finding.chips]
        assert own == [str(finding) for finding in alone.findings]


@examples(300)
@given(st.data(), st.sampled_from(GOOD), st.sampled_from(chips.ALL))
def test_fields_reported_missing_are_missing(data: st.DataObject, good: Any, chip: Chip) -> None:
    found = changed(good, data.draw(st.sampled_from(places(good))), data.draw(values))
    try:
        found = document.parse(json.dumps(found).encode())
    except document.DocumentError:
        return
    for finding in checking.check(found, chip):
        assert "None" not in finding.problem
        if "is missing" in finding.problem:
            holder, _, key = finding.place.rpartition(".")
            assert key not in value_at(found, holder)


def value_at(value: Any, place: str) -> Any:
    """The value at a path such as server_list[0].device[1]."""
    for part in filter(None, place.split(".")):
        name, *indexes = part.replace("]", "").split("[")
        value = value[name]
        for index in indexes:
            value = value[int(index)]
    return value


@examples(200)
@given(st.data(), st.sampled_from(GOOD))
def test_what_a_chip_accepts_can_be_read_and_written_again(data: st.DataObject, good: Any) -> None:
    found = changed(good, data.draw(st.sampled_from(places(good))), data.draw(scalars))
    written = json.dumps(found).encode()
    verdict = checking.judge_bytes(written)
    if not verdict.accepted or "group_list" in found or verdict.findings:
        return
    again = document.compact(tables.read(document.parse(written)))
    assert checking.judge_bytes(again).accepted == verdict.accepted
    assert document.compact(tables.read(document.parse(again))) == again


@pytest.mark.parametrize("good", [good for good in GOOD if "group_list" not in good])
def test_a_merged_table_keeps_every_field_that_is_read(good: Any) -> None:
    merged = merging.merge({"a.json": tables.read(good)}).table
    assert json.loads(document.compact(merged)) == good


@examples(200)
@given(st.binary(max_size=60))
def test_any_bytes_get_a_result(data: bytes) -> None:
    assert checking.judge_bytes(data).findings


@pytest.mark.parametrize("command", ["check", "show", "merge"])
def test_control_characters_of_a_table_are_escaped(command: str) -> None:
    hostile = changed(GOOD[0], ("server_list", 0, "server_id"), "\x1b[2J\x07")
    hostile = changed(hostile, ("server_list", 1, "server_id"), "\x1b[2J\x07")
    done = CliRunner().invoke(main.main, ["ranktable", command, "-"], input=json.dumps(hostile))
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


def test_a_lone_surrogate_is_refused() -> None:
    written = json.dumps(changed(GOOD[0], ("server_list", 0, "server_id"), "x")).replace('"x"', '"\\ud800"').encode()
    assert checking.judge_bytes(written).accepted == ()
