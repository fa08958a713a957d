"""`resnetboost doctor`: on this machine, with self-checks by real ranks, and on a real API server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.operator import Space
from beds.operator.wait import eventually
from resnetboost_trainer.selfcheck import cases, gang

pytestmark = pytest.mark.slow

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
PATIENCE_SECONDS = 300.0


def doctor(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RESNETBOOST, "doctor", *words],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout)["findings"]:
        grouped.setdefault(one["check"], []).append(one)
    return grouped


def test_this_machine_as_lines_and_as_json(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--no-self-check", "-o", "json")
    found = findings(done)
    assert found["mindspore"][0]["level"] == "ok", done.stdout
    problems = [one for listed in found.values() for one in listed if one["level"] == "problem"]
    assert done.returncode == (1 if problems else 0)
    assert {"system", "cores", "memory", "shm", "disk", "ports", "operators"} <= found.keys()
    assert list(tmp_path.iterdir()) == [], "it only looks"


def test_self_checks_compare_every_algorithm_and_write_a_report(tmp_path: Path) -> None:
    of_a_pod = {"RESNETBOOST_RANK_TABLE": "/nowhere", "RESNETBOOST_INDEX": "0", "RESNETBOOST_WORLD_SIZE": "1"}
    done = doctor(tmp_path, "--self-check", "-o", "json", RESNETBOOST_TEST_VALUE="an-own-value", **of_a_pod)
    found = findings(done)
    assert [found[name][0]["level"] for name in ("all-reduce", *cases.ALGORITHMS)] == ["ok"] * 5, done.stdout
    text = (tmp_path / "resnetboost-doctor.json").read_text()
    report = json.loads(text)
    for computed in report["selfChecks"].values():
        assert computed["results"]["reduced"] == 3.0
        assert computed["results"]["algorithms"].keys() == set(cases.ALGORITHMS)
    assert len(text) < 200_000 and "an-own-value" not in text and str(tmp_path) not in text


def test_a_device_that_is_not_here_is_a_problem_with_the_ranks_own_words(tmp_path: Path) -> None:
    ended = gang.run(tmp_path, "GPU", 1, True, PATIENCE_SECONDS)
    assert ended.results is None and "rank 0 ended with exit code" in ended.trouble
    assert "GPU" in ended.logs["rank-0.log"]


def test_a_gang_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    ended = gang.run(tmp_path, "CPU", 2, True, 0.5)
    assert "did not finish within 0.5 s" in ended.trouble
    assert of_folder(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "whom"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_leaves_no_process(number: int, whom: Callable[[int, int], None], tmp_path: Path) -> None:
    words = [RESNETBOOST, "doctor", "--self-check"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
    ) as asked:
        eventually(lambda: len(of_folder(tmp_path)), lambda count: count > 1, "ranks compute", PATIENCE_SECONDS)
        whom(asked.pid, number)
        asked.wait(PATIENCE_SECONDS)
    eventually(lambda: of_folder(tmp_path), lambda found: not found, "all have ended", PATIENCE_SECONDS)


def of_folder(folder: Path) -> list[str]:
    """The processes whose command names a folder in that one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text()
        except OSError:
            continue
        if str(folder) in command and "selfcheck" in command:
            found.append(path.parent.name)
    return found


@pytest.mark.usefixtures("operator")
def test_an_administrator_sees_a_whole_cluster(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    done = doctor(tmp_path, "--cluster", "-n", namespace, "-o", "json", **control_plane.environment())
    found = findings(done)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {
        "server": "ok",
        "definition": "ok",
        "rights": "ok",
        "nodes": "ok",
        "operator": "ok",
        "storage": "warning",
    }
    assert {check: found[check][0]["level"] for check in expected} == expected
    assert "operator leads" in found["operator"][0]["message"]
    assert any("huawei.com/Ascend910" in one["message"] for one in found["devices"])
    assert "910A" in found["chips"][-1]["message"]
    assert not any("not known" in one["message"] for listed in found.values() for one in listed)


def test_a_user_with_few_rights_gets_what_is_known_and_the_servers_reasons(space: Space, tmp_path: Path) -> None:
    plane, path = space.plane, f"/api/v1/namespaces/{space.namespace}/serviceaccounts"
    plane.client.send("POST", path, {"metadata": {"name": "visitor"}})
    kubeconfig = plane.token_kubeconfig(space.namespace, "visitor")
    done = doctor(tmp_path, "--cluster", "-n", space.namespace, "-o", "json", KUBECONFIG=str(kubeconfig), NO_PROXY="*")
    found = findings(done)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (found["rights"][0]["level"], found["definition"][0]["level"]) == ("problem", "ok")
    assert "nodes is forbidden" in found["nodes"][0]["message"]
    user = f"system:serviceaccount:{space.namespace}:visitor"
    written = [one for one in plane.requests(user) if one.verb not in ("get", "list")]
    assert {one.resource for one in written} <= {"selfsubjectaccessreviews"}, "it writes nothing"


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--cluster", KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 10 and done.stdout == ""
    assert done.stderr.startswith("resnetboost: no API server is configured") or "no kubeconfig" in done.stderr
    assert doctor(tmp_path, "-n", "team-a").returncode == 10
    assert doctor(tmp_path, "--cluster", "--self-check").returncode == 10
