"""Whatever a file holds, a check ends in a verdict and a command in sentences: tables and annotations are untrusted."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from resnetboost_operator.ranktable import checking, chips, document, tables
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.terminal import cli

TABLES = Path(__file__).parents[1] / "ranktables"
GOOD = [
    json.loads((TABLES / f"{name}.json").read_bytes())
    for name in (
        "hccl_doc_910_v1_4p",
        "hccl_doc_910_group_4p",
        "hccl_doc_a3_v12_superpod_16p",
        "hccl_doc_a5_v2_4p",
        "ms_docs_old_group_2p",
    )
]
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
scalars |= st.sampled_from(
    ["0", "-1", "4294967295", "4294967296", "10.0.0.1", "fd00::1%eth0", "%", ",", "1.0", "2.0", "1e9"]
)
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


@settings(max_examples=500)
@given(st.data(), st.sampled_from(GOOD), st.sampled_from(chips.ALL))
def test_anything_in_any_place_gets_a_verdict(data: st.DataObject, good: Any, chip: Chip) -> None:
    found = changed(good, data.draw(st.sampled_from(places(good))), data.draw(values))
    written = json.dumps(found).encode()
    for verdict in (checking.judge_bytes(written, chip), checking.judge_bytes(written)):
        assert all(str(finding).isprintable() and len(str(finding)) < 1500 for finding in verdict.findings)


@settings(max_examples=200)
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


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_get_a_verdict(data: bytes) -> None:
    assert checking.judge_bytes(data).findings


@pytest.mark.parametrize("command", ["check", "show", "merge"])
def test_a_table_moves_no_cursor(command: str) -> None:
    hostile = changed(GOOD[0], ("server_list", 0, "server_id"), "\x1b[2J\x07")
    hostile = changed(hostile, ("server_list", 1, "server_id"), "\x1b[2J\x07")
    done = CliRunner().invoke(cli.main, ["ranktable", command, "-"], input=json.dumps(hostile))
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


def test_half_a_surrogate_is_no_text() -> None:
    written = json.dumps(changed(GOOD[0], ("server_list", 0, "server_id"), "x")).replace('"x"', '"\\ud800"').encode()
    assert checking.judge_bytes(written).accepted == ()
