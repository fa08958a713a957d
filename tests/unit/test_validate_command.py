"""`resnetboost validate` on hostile files: output stays readable, short and harmless."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from resnetboost_operator.cli.main import main

EXAMPLE = (Path(__file__).parents[2] / "examples" / "digits.yaml").read_text()
RED = "\x1b[31m"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def validated(text: str, name: str = "job.yaml") -> Result:
    Path(name).write_text(text)
    return CliRunner().invoke(main, ["validate", name])


HOSTILE = {
    "a name": (EXAMPLE.replace("name: digits", r'name: "t\e[31m"', 1), r"'t\x1b[31m'"),
    "a field": (EXAMPLE + r'  "a\e[31m": 1', r"spec[a\x1b[31m]: no such field"),
    "a forged line": (EXAMPLE + r'  "a\nresnetboost: b": 1', r"spec[a\nresnetboost: b]: no such field"),
    "a value": (EXAMPLE + r'  jitLevel: "\e[31m"', r"'\x1b[31m' is not known"),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE.keys())
def test_escape_sequences_in_a_file_are_escaped(folder: Path, text: str, shown: str) -> None:
    result = validated(text)
    assert result.exit_code == 10
    assert shown in result.output
    assert RED not in result.output
    assert all(line.startswith("resnetboost: job.yaml: ") for line in result.output.splitlines())


def test_escape_sequences_in_a_file_name_are_escaped(folder: Path) -> None:
    assert validated(EXAMPLE, RED).output.startswith("\\x1b[31m: ok (digits); note: spec.checkpoint.claimName: ")
    assert RED not in validated("a: [", RED).output


def test_only_the_first_of_many_problems_are_told(folder: Path) -> None:
    result = validated(EXAMPLE + "".join(f"  junk{i}: 1\n" for i in range(60_000)))
    lines = result.output.splitlines()
    assert (result.exit_code, len(lines)) == (10, 21)
    assert "spec.junk0: no such field" in lines[0]
    assert lines[-1] == "resnetboost: job.yaml: and 59980 more"


def test_a_long_name_does_not_fill_the_screen(folder: Path) -> None:
    result = validated(EXAMPLE + f"  ? {'x' * 50_000}\n  : 1\n")
    assert "spec.xxxx" in result.output
    assert len(result.output) < 1100


CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: kept}\n"


def test_each_job_of_a_file_with_several_documents_is_checked(folder: Path) -> None:
    two = f"{CLAIM}---\n{EXAMPLE}---\n" + EXAMPLE.replace("name: digits", "name: second", 1)
    result = validated(two)
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("job.yaml, line ")
    assert (": ok (digits)" in first, ": ok (second)" in second) == (True, True)
    wrong = validated(two.replace("epochs: 6", "epochs: 0"))
    assert wrong.exit_code == 10
    places = [line.partition(": spec.")[0] for line in wrong.output.splitlines()]
    assert places == [f"resnetboost: {line.partition(': ok')[0]}" for line in (first, second)]


def test_a_file_of_other_objects_alone_has_no_job(folder: Path) -> None:
    result = validated(f"{CLAIM}---\n{CLAIM}")
    assert (result.exit_code, result.output.count("\n")) == (10, 1)
    assert "none of its 2 documents is a ResNetBoostJob" in result.output


def test_a_note_is_no_problem(folder: Path) -> None:
    alone = "algorithm: Momentum\n      deviceCount: 1\n      allReduceFusion: {}"
    result = validated(EXAMPLE.replace("algorithm: Momentum", alone, 1))
    assert result.exit_code == 0
    assert result.output.startswith("job.yaml: ok (digits); note: spec.stages[0].allReduceFusion: one device has no")


def test_a_plan_has_its_notes_beside_it(folder: Path) -> None:
    Path("job.yaml").write_text(EXAMPLE)
    alone = ["--set", "stages[0].deviceCount=1", "--set", "stages[0].allReduceFusion.bucketBytes=65536"]
    result = CliRunner().invoke(main, ["plan", "job.yaml", *alone])
    assert result.stdout.startswith("---\n")
    assert result.stderr.startswith("resnetboost: note: spec.stages[0].allReduceFusion: ")


def test_a_plan_of_a_gang_has_the_group_of_a_cluster_that_schedules_gangs(folder: Path) -> None:
    Path("job.yaml").write_text(EXAMPLE)
    planned = CliRunner().invoke(main, ["plan", "job.yaml", "--set", "scheduling.schedulingPolicy={gang: {}}"])
    kinds = [found["kind"] for found in yaml.safe_load_all(planned.stdout)]
    assert kinds == ["PodGroup", "Secret", "ConfigMap", "Service", "Pod", "Pod"]
    plain = CliRunner().invoke(main, ["plan", "job.yaml"])
    assert "PodGroup" not in plain.stdout
