"""Published rank tables are accepted or rejected as HCCL does, for the same reason."""

from pathlib import Path

import pytest

from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.ranktable.check.findings import errors
from resnetboost_operator.ranktable.check.rules import Rule
from resnetboost_operator.ranktable.chips import Chip

TABLES = Path(__file__).parents[1] / "ranktables"
DOCUMENT = Path(__file__).parents[2] / "docs" / "ranktables.md"
OLDER: tuple[Chip, ...] = ("910A", "910B", "A3")

ACCEPTED: dict[str, tuple[tuple[Chip, ...], tuple[Rule, ...]]] = {
    "ge_invalid.json": (OLDER, (rules.SERVER_COUNT_MISSING,)),
    "hccl_doc_910_group_4p.json": (("910A",), (rules.OLD_TEMPLATE,)),
    "hccl_doc_910_v1_4p.json": (OLDER, ()),
    "hccl_doc_a3_v12_superpod_16p.json": (("A3",), ()),
    "hccl_doc_a5_v2_4p.json": (("950",), ()),
    "hccl_doc_a5_v2_eid_2p.json": (("950",), ()),
    "mindformers_glm_32p.json": (OLDER, ()),
    "ms_docs_dimreduce_8p.json": (OLDER, ()),
    "ms_docs_old_group_2p.json": (("910A",), (rules.OLD_TEMPLATE,)),
    "tf_gnmt_16p.json": (OLDER, ()),
    "tf_waveglow_1p.json": (OLDER, ()),
}
REFUSED = {
    "ge_wrong_value.json": {rules.SERVER_COUNT},
    "ms_docs_adasum_16p.json": {rules.SERVER_ID_REPEATED},
    "ms_docs_startup_16p.json": {rules.DEVICE_IP, rules.SERVER_ID_REPEATED},
    "ms_docs_startup_8p.json": {rules.DEVICE_IP},
    "ms_st_cross_4_cluster_8p.json": {rules.DEVICE_IP_MISSING, rules.DEVICE_IP_REQUIRED},
    "tf_resnet101_2p_broken.json": {rules.JSON},
}


def test_every_published_table_has_an_expected_result() -> None:
    assert {path.name for path in TABLES.glob("*.json")} == ACCEPTED.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_good_table_is_accepted_on_the_chips_that_read_it(name: str) -> None:
    verdict = checking.judge_bytes((TABLES / name).read_bytes())
    chips, warnings = ACCEPTED[name]
    assert verdict.accepted == chips
    assert tuple(finding.rule for finding in verdict.findings) == warnings


@pytest.mark.parametrize("name", REFUSED)
def test_a_defective_table_is_refused_for_exactly_its_defects(name: str) -> None:
    verdict = checking.judge_bytes((TABLES / name).read_bytes())
    assert verdict.accepted == ()
    assert {finding.rule for finding in errors(verdict.findings)} == REFUSED[name]


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        ("ms_docs_adasum_16p.json", "server_list[1].server_id", 'EI0014 HCCL_E_PARA "IP" is repeate'),
        ("ms_docs_startup_16p.json", "server_list[0].device[0].device_ip", "192.1.*.6"),
        ("ge_wrong_value.json", "server_count", 'is "2", but server_list has 1'),
        ("tf_resnet101_2p_broken.json", "", "line 33"),
    ],
)
def test_the_first_error_is_the_one_at_which_hccl_stops(name: str, place: str, words: str) -> None:
    first = errors(checking.judge_bytes((TABLES / name).read_bytes()).findings)[0]
    assert first.place == place
    assert words in str(first)


def test_the_docs_list_the_same_results() -> None:
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    told = {line.split("`")[1]: line for line in lines}
    for name, (chips, _) in ACCEPTED.items():
        assert f"accepted on {', '.join(chips)}" in told[name]
    for name in REFUSED:
        assert "refused" in told[name]
        first = errors(checking.judge_bytes((TABLES / name).read_bytes()).findings)[0]
        assert first.rule.hccl.split('"')[0].strip() in told[name] or not first.rule.stops
        assert first.rule.source.split()[1] in told[name] or not first.rule.stops
