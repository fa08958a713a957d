"""`resnetboost ranktable`: output, files and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from resnetboost_operator.cli import main
from resnetboost_operator.ranktable import hccn

TABLES = Path(__file__).parents[1] / "ranktables"
CONFIG = "address_0=192.168.1.8\nnetmask_0=255.255.255.0\naddress_1=192.168.1.9\ngateway_1=192.168.1.1\n"
ANSWERS = "ipaddr:192.168.2.8\nnetmask:255.255.255.0\nipaddr:192.168.2.9\nnetmask:255.255.255.0\n"


def run(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(main.main, ["ranktable", *map(str, words)], input=given)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node-0.conf"
    path.write_text(CONFIG)
    return path


def written(path: Path) -> Any:
    return json.loads(path.read_bytes())


def addresses(table: Any) -> dict[str, list[tuple[str, str, str]]]:
    return {
        server["server_id"]: [(each["device_id"], each["device_ip"], each["rank_id"]) for each in server["device"]]
        for server in table["server_list"]
    }


def test_a_table_of_one_server_is_made_from_its_configuration(config: Path) -> None:
    done = run("generate", config, "--server-id", "node_0")
    assert done.exit_code == 0
    assert addresses(json.loads(done.stdout)) == {"node_0": [("0", "192.168.1.8", "0"), ("1", "192.168.1.9", "1")]}


def test_a_table_of_several_servers_has_the_names_of_their_files(config: Path, tmp_path: Path) -> None:
    answers, table = tmp_path / "node-1.txt", tmp_path / "hccl.json"
    answers.write_text(ANSWERS)
    done = run("generate", config, answers, "--output", table)
    assert (done.exit_code, done.output) == (0, f"{table}: version 1.0, 2 servers, 4 ranks\n")
    assert addresses(written(table)) == {
        "node-0": [("0", "192.168.1.8", "0"), ("1", "192.168.1.9", "1")],
        "node-1": [("0", "192.168.2.8", "2"), ("1", "192.168.2.9", "3")],
    }
    assert table.stat().st_mode & 0o777 == 0o644
    assert run("check", table).exit_code == 0


def test_what_hccn_tool_answers_is_read_from_standard_input() -> None:
    done = run("generate", "-", "--server-id", "a", "--devices", "4,5", given=ANSWERS)
    assert addresses(json.loads(done.stdout)) == {"a": [("4", "192.168.2.8", "0"), ("5", "192.168.2.9", "1")]}


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        pytest.param(CONFIG, None, {0: "192.168.1.8", 1: "192.168.1.9"}, id="hccn.conf"),
        pytest.param(CONFIG, (1,), {1: "192.168.1.9"}, id="one device of it"),
        pytest.param(CONFIG.replace("\n", "\r\n"), (0,), {0: "192.168.1.8"}, id="lines of another system"),
        pytest.param(ANSWERS, None, {0: "192.168.2.8", 1: "192.168.2.9"}, id="answers in order"),
        pytest.param(
            "+ hccn_tool -i 6 -ip -g\nipaddr:10.0.0.6\n+ hccn_tool -i 7 -ip -g\nipaddr:10.0.0.7\n",
            None,
            {6: "10.0.0.6", 7: "10.0.0.7"},
            id="answers with their calls",
        ),
        pytest.param("address_0=fd00::1\n", None, {0: "fd00::1"}, id="IPv6"),
    ],
)
def test_addresses_are_found(text: str, wanted: tuple[int, ...] | None, expected: dict[int, str]) -> None:
    assert hccn.read(text, wanted) == expected


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--devices", "7"], "there is no address of device 7; it has those of 0, 1"),
        (["--devices", "3-1"], 'devices "3-1": write ids and ranges such as 0-3,6'),
        (["--devices", "0,0-1"], "name each device once"),
        (
            ["--server-id", "a", "--server-id", "b"],
            "there are 2 --server-ids for 1 source; give one for each, in order",
        ),
        (["--output", "table.txt"], "HCCL reads only files that end in .json"),
    ],
)
def test_an_impossible_table_is_one_sentence(words: list[str], problem: str, config: Path) -> None:
    done = run("generate", config, *words)
    assert (done.exit_code, done.stdout) == (10, "")
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missing_addresses_and_files_are_errors(tmp_path: Path) -> None:
    done = run("generate", "-", given="nothing\n")
    assert "standard input: no line address_N=... of hccn.conf and no line ipaddr:... of hccn_tool" in done.stderr
    done = run("check", tmp_path / "none.json")
    assert (done.exit_code, "none.json cannot be read: No such file" in done.stderr) == (10, True)


def test_a_chip_that_is_unknown_is_refused_with_the_chips_as_they_are_written(tmp_path: Path) -> None:
    done = run("check", tmp_path / "hccl.json", "--chip", "910C")
    assert "'910C' is not one of 910A, 910B, A3, 950." in " ".join(done.stderr.split())


def test_a_name_that_hccl_would_not_read_is_a_warning_with_the_name_it_needs(tmp_path: Path) -> None:
    table = tmp_path / "hccl.txt"
    table.write_text(run("generate", "-", given=ANSWERS).stdout)
    done = run("check", table)
    sentence = f"the path {table} must contain .json exactly once, at its end; HCCL reads no other"
    assert "".join(sentence.split()) in "".join(done.stdout.split()), "in lines as wide as the terminal"


def test_a_table_that_hccl_would_refuse_is_not_written(tmp_path: Path) -> None:
    table = tmp_path / "hccl.json"
    source = "\n".join(f"address_{device}=10.0.0.{device}" for device in (2, 3, 4, 5))
    assert run("generate", "-", "--chip", "910a", "-o", table, given=source).exit_code == 10
    assert not table.exists()
    done = run("generate", "-", "-o", table, given=source)
    assert done.exit_code == 0
    assert "not for 910A: server_list[0] has the devices 2, 3, 4, 5" in done.stderr


def one_server(path: Path, name: str, first: int) -> Path:
    devices = [
        {"device_id": str(first + each), "device_ip": f"10.0.{len(name)}.{first + each}", "rank_id": str(each)}
        for each in (0, 1)
    ]
    server = {"server_id": name, "device": devices, "host_nic_ip": "reserve"}
    path.write_text(json.dumps({"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}))
    return path


def test_tables_merge_in_the_order_they_are_named(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 0), one_server(tmp_path / "y.json", "bb", 4)
    merged = tmp_path / "hccl.json"
    assert run("merge", first, second, "-o", merged).exit_code == 0
    assert [[rank for *_, rank in held] for held in addresses(written(merged)).values()] == [["0", "1"], ["2", "3"]]
    assert written(merged)["server_count"] == "2"


def test_containers_of_one_host_become_one_server(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 0), one_server(tmp_path / "y.json", "a", 2)
    done = run("merge", first, second)
    assert [[device for device, *_ in held] for held in addresses(json.loads(done.stdout)).values()] == [
        ["0", "1", "2", "3"]
    ]


def test_the_same_devices_twice_are_refused_as_hccl_would(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 0), one_server(tmp_path / "y.json", "a", 0)
    done = run("merge", first, second)
    assert (done.exit_code, done.stdout) == (10, "")
    assert "EI0014" in done.stderr
    assert "it was not written" in done.stderr


def test_problems_of_a_merged_table_name_their_files(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 0), one_server(tmp_path / "y.json", "b", 0)
    done = run("merge", first, second)
    assert done.exit_code == 10
    assert (
        f'{second}: server_list[0].device[1].device_ip "10.0.1.1" is also that of {first}: server_list[0].device[1] ('
    ) in done.stderr


def test_a_merged_server_names_all_its_files(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 2), one_server(tmp_path / "y.json", "a", 4)
    done = run("merge", first, second, "--chip", "910A")
    assert f"{first}: server_list[0] and {second}: server_list[0] has the devices 2, 3, 4, 5 (" in done.stderr


def test_entries_of_one_server_must_not_contradict_each_other(tmp_path: Path) -> None:
    first, second = one_server(tmp_path / "x.json", "a", 0), one_server(tmp_path / "y.json", "a", 2)
    for path, address in ((first, "10.1.0.1"), (second, "10.1.0.2")):
        found = written(path)
        found["server_list"][0]["pod_ip"] = address
        path.write_text(json.dumps(found))
    done = run("merge", first, second)
    assert done.exit_code == 10
    assert (
        f'{second}: server_list[0].pod_ip is "10.1.0.2", but {first}: server_list[0] has "10.1.0.1" for the same '
        'server_id "a"; write the same into both, or leave it out'
    ) in done.stderr


def test_ranks_with_different_detours_do_not_merge(tmp_path: Path) -> None:
    first, second = TABLES / "hccl_doc_a5_v2_4p.json", tmp_path / "y.json"
    second.write_text(json.dumps(written(first) | {"detour": "true"}))
    done = run("merge", first, second)
    assert done.exit_code == 10
    assert f'detour "false" ({first}) and "true" ({second})' in done.stderr


def test_at_most_20_problems_of_a_merged_table_are_listed(tmp_path: Path) -> None:
    table, twin = written(TABLES / "tf_gnmt_16p.json"), tmp_path / "y.json"
    for server in table["server_list"]:
        server["server_id"] += "-twin"
        for device in server["device"]:
            device["device_port"] = "80"
    twin.write_text(json.dumps(table))
    both = run("merge", TABLES / "tf_gnmt_16p.json", twin)
    assert (both.exit_code, len(both.stderr.splitlines())) == (10, 17)
    found = one_server(tmp_path / "x.json", "a", 0)
    many = written(found)
    device = many["server_list"][0]["device"][0]
    many["server_list"] = [
        {
            "server_id": f"n{server:02}",
            "device": [device | {"device_ip": f"10.0.0.{server + 1}", "device_port": "80", "rank_id": str(server)}],
        }
        for server in range(50)
    ]
    many["server_count"] = "50"
    found.write_text(json.dumps(many))
    done = run("merge", found)
    assert done.exit_code == 0
    assert len(done.stderr.splitlines()) == 21
    assert done.stderr.splitlines()[-1] == "resnetboost: and 30 more"
    table["server_list"][0]["device"] *= 50
    found.write_text(json.dumps(table))
    refused = run("merge", found)
    assert len(refused.stderr.splitlines()) == 22
    assert " more" in refused.stderr.splitlines()[-2]


def test_a_check_names_each_place_once_for_all_chips(tmp_path: Path) -> None:
    found = written(TABLES / "hccl_doc_910_v1_4p.json")
    found["server_list"][1]["device"][1]["device_id"] = "16"
    found["server_list"][0]["device"][0]["device_ip"] = ""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(found))
    told = " ".join(run("check", path).output.split())
    assert told.count("server_list[1].device[1].device_id") == 1
    assert told.count("server_list[0].device[0].device_ip") == 1
    assert "on 910A is 16, the devices of a server with 910A are 0 to 7; on 910B is 16" in told
    assert "HCCL on 910A and A3: does not check it" in told
    assert 'HCCL on 910B stops here: EI0014 HCCL_E_PARA "a valid IP address"' in told


def test_super_pods_merge_by_their_id() -> None:
    done = run("merge", TABLES / "hccl_doc_a3_v12_superpod_16p.json")
    assert done.exit_code == 0
    original = written(TABLES / "hccl_doc_a3_v12_superpod_16p.json")
    assert json.loads(done.stdout) == original


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["hccl_doc_910_v1_4p", "hccl_doc_a5_v2_4p"], "the tables have the versions 1.0"),
        (["hccl_doc_910_group_4p"], "template 2 (group_list) cannot be merged"),
        (["tf_resnet101_2p_broken"], "not valid JSON"),
        (["tf_waveglow_1p", "tf_waveglow_1p"], "is named twice"),
    ],
)
def test_tables_that_do_not_merge_are_named(names: list[str], problem: str) -> None:
    done = run("merge", *(TABLES / f"{name}.json" for name in names))
    assert done.exit_code == 10
    assert problem in done.stderr
    assert f"{names[0]}.json" in done.stderr


@pytest.mark.parametrize(
    ("name", "chip", "code", "words"),
    [
        ("tf_gnmt_16p", None, 0, "accepted on 910A, 910B and A3"),
        ("ms_docs_adasum_16p", None, 10, 'HCCL stops here: EI0014 HCCL_E_PARA "IP" is repeate'),
        ("ms_docs_startup_8p", "910B", 10, "and 4 more"),
        ("tf_gnmt_16p", "950", 10, "refused on 950 (Ascend 950)"),
        ("ge_invalid", None, 0, "warning"),
    ],
)
def test_a_check_prints_its_result_and_reasons(name: str, chip: str | None, code: int, words: str) -> None:
    done = run("check", TABLES / f"{name}.json", *(["--chip", chip] if chip else []))
    assert done.exit_code == code
    assert words in done.output


def test_a_file_hccl_would_not_open_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_bytes((TABLES / "tf_gnmt_16p.json").read_bytes())
    done = run("check", path)
    assert done.exit_code == 0
    assert "name of the file" in done.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tf_gnmt_16p", ["2 servers, 16 ranks", "192.168.40.173"]),
        ("hccl_doc_a3_v12_superpod_16p", ["2 super pods", "super device", "172.16.0.103"]),
        ("hccl_doc_a5_v2_4p", ["version 2.0, 4 ranks", "az0-rack0-pod0 172.16.0.10"]),
        ("hccl_doc_910_group_4p", ["template 2, 2 ranks", "tf-tbdf1"]),
    ],
)
def test_show_prints_the_tables_content(name: str, words: list[str]) -> None:
    done = run("show", TABLES / f"{name}.json")
    assert done.exit_code == 0
    assert all(word in done.output for word in words)


def test_show_reports_an_invalid_table() -> None:
    done = run("show", "-", given='{"version": "1.0", "status": "completed", "server_list": [{"server_id": 1}]}')
    assert done.exit_code == 10
    assert done.stderr == (
        "resnetboost: standard input: server_list[0].server_id: expected `str`, got `int`; "
        "`resnetboost ranktable check` says more\n"
    )
