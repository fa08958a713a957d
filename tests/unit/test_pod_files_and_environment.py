"""Local pods: mount paths and service names in a container's environment are translated to local ones."""

from pathlib import Path
from typing import Any

import pytest

from resnetboost_operator.local import machine, podfiles

MOUNTS = {
    "/checkpoints": Path("/run/checkpoints"),
    "/checkpoints/deep": Path("/run/deep"),
    "/dev/log": Path("/run/log"),
}
HOSTS = {"gang.default.svc": "127.9.0.1"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/checkpoints", "/run/checkpoints"),
        ("/checkpoints/a/b", "/run/checkpoints/a/b"),
        ("/checkpoints/deep/a", "/run/deep/a"),
        ("/checkpoints-old", "/checkpoints-old"),
        ("x/checkpoints", "x/checkpoints"),
        ("/dev/log", "/run/log"),
        ("gang.default.svc:8118", "127.9.0.1:8118"),
        ("tcp://gang.default.svc", "tcp://127.9.0.1"),
        ("big-gang.default.svc:8118", "big-gang.default.svc:8118"),
        ("gang.default.svc.cluster.local", "gang.default.svc.cluster.local"),
        ("", ""),
    ],
)
def test_values_are_rewritten_where_they_name_a_mount_or_a_service(value: str, expected: str) -> None:
    assert podfiles.rewrite(value, MOUNTS, HOSTS) == expected


def pod(*variables: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "gang-0", "namespace": "space"},
        "spec": {"nodeName": "here", "containers": [{"env": list(variables)}]},
    }


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ({"name": "X", "value": "plain"}, "plain"),
        ({"name": "X"}, ""),
        (field("metadata.name"), "gang-0"),
        (field("metadata.namespace"), "space"),
        (field("spec.nodeName"), "here"),
        (field("status.podIP"), "127.9.0.2"),
        ({"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}, "3"),
    ],
    ids=str,
)
def test_variables_get_their_value_from_the_pod(variable: dict[str, Any], expected: str) -> None:
    assert podfiles.environment(pod(variable), "127.9.0.2", 3, {}, {})["X"] == expected


def test_the_shells_environment_is_there_but_not_what_belongs_to_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESNETBOOST_RANK", "MS_ROLE", "OMP_PROC_BIND", "PLAIN"):
        monkeypatch.setenv(name, "of the shell")
    found = podfiles.environment(pod(), "127.9.0.2", 3, {}, {})
    assert found["PLAIN"] == "of the shell"
    assert {"RESNETBOOST_RANK", "MS_ROLE", "OMP_PROC_BIND"}.isdisjoint(found)
    assert (found["RESNETBOOST_BIND_ADDRESS"], found["OMP_NUM_THREADS"]) == ("127.9.0.2", "3")


@pytest.mark.parametrize(
    ("cores", "count", "expected"),
    [
        ((0, 1), 1, [(0, 1)]),
        ((0, 1), 2, [(0,), (1,)]),
        ((0, 1), 3, [(0,), (1,), (0,)]),
        ((2, 3, 6, 7), 2, [(2, 3), (6, 7)]),
        ((0, 1, 2, 3), 3, [(0,), (1,), (2,)]),
        ((5,), 2, [(5,), (5,)]),
    ],
    ids=["alone", "one each", "more ranks than cores", "several each", "equal shares only", "a single core"],
)
def test_ranks_share_the_cores_evenly(cores: tuple[int, ...], count: int, expected: list[tuple[int, ...]]) -> None:
    assert [machine.share(cores, index, count) for index in range(count)] == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000\n", None), ("100000 100000\n", 1), ("50000 100000\n", 1), ("", None)],
    ids=["no limit", "one core", "half a core", "unreadable"],
)
def test_a_cpu_quota_counts_as_cores(tmp_path: Path, quota: str, expected: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    everything = len(machine.usable_cores(tmp_path / "absent"))
    assert len(machine.usable_cores(file)) == (everything if expected is None else expected)
