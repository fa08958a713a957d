"""The kernel's count of processes that it killed for memory, as containers and machines show it."""

from pathlib import Path

import pytest

from resnetboost_trainer.launcher.memory_events import oom_kills

V2, V1 = "low 0\nhigh 0\noom 3\noom_kill 2\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


@pytest.mark.parametrize(
    ("member", "file", "text"),
    [
        ("0::/\n", "memory.events", V2),
        ("0::/kubepods/pod1/c1\n", "memory.events", V2),  # a container without a cgroup namespace
        ("0::/user.slice/me\n", "user.slice/me/memory.events", V2),
        ("8:memory:/\n3:cpu:/\n", "memory/memory.oom_control", V1),
        ("8:cpuset,memory:/kubepods/pod1/c1\n", "memory/memory.oom_control", V1),
        ("8:memory:/mine\n", "memory/mine/memory.oom_control", V1),
    ],
)
def test_the_counter_is_that_of_the_own_cgroup(tmp_path: Path, member: str, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    (tmp_path / "self").write_text(member)
    assert oom_kills(tmp_path, tmp_path / "self") == 2


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n"])
def test_without_a_counter_nobody_was_killed(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert oom_kills(tmp_path, tmp_path / "missing") == 0
