"""Run folders: what can be resumed with which job, and the one-sentence refusals."""

import fcntl
import functools
import itertools
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from resnetboost_api.status import Attempt, Condition, Progress, Ranks, StageStatus, Status
from resnetboost_operator import yamltext
from resnetboost_operator.cli.main import main
from resnetboost_operator.cli.run import command
from resnetboost_operator.cli.view import summary
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import parse_job
from resnetboost_operator.local import entry
from resnetboost_operator.runs import place, resumption, runfolder
from resnetboost_operator.validation import jobfile, schema
from support import interruption
from support.measuredrun import COMMANDS

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


def job(**spec: Any) -> dict[str, Any]:
    found = schema.defaulted(jobfile.load(EXAMPLE))
    found["spec"] |= spec
    return found


def test_the_job_keeps_its_uid(tmp_path: Path) -> None:
    first = runfolder.open_for_run(tmp_path / "run").enter(job())
    again = runfolder.open_for_run(tmp_path / "run").enter(job())
    assert first == again
    assert first["metadata"]["uid"]


def test_the_job_of_an_earlier_version_has_todays_defaults(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    wanted = folder.enter(job())
    kept = folder.read_job()
    del kept["spec"]["stages"][0]["labelSmoothingOver"]
    folder.job_file.write_text(yamltext.dump(kept))
    assert parse_job(folder.read_job()) == parse_job(wanted)


def test_small_numbers_survive_a_round_trip(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    wanted = job()
    wanted["spec"]["stages"][0]["momentum"]["weightDecay"] = 1e-5
    folder.enter(wanted)
    assert folder.read_job()["spec"] == wanted["spec"]


def test_another_job_is_refused_with_the_differing_field(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    with pytest.raises(UserError, match=r"spec\.seed is 0 there and 5 here"):
        folder.enter(job(seed=5))


def test_another_number_of_stages_is_refused(tmp_path: Path) -> None:
    more = job()
    more["spec"]["stages"] = [*more["spec"]["stages"], {**more["spec"]["stages"][0], "name": "more"}]
    assert resumption.refusal(job(), more) == "spec.stages is a list of 1 there and a list of 2 here"


def test_policies_may_change_and_count_as_a_new_generation(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    policy = {**job()["spec"]["runPolicy"], "activeDeadlineSeconds": 60}
    assert folder.enter(job(runPolicy=policy))["metadata"]["generation"] == 2


def test_status_survives_a_round_trip(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    status = Status(phase="Running", ranks=Ranks(2, 2, 2), start_time="2026-01-01T00:00:00Z")
    folder.write_status(status)
    assert folder.read_status() == status


@pytest.mark.parametrize(
    "text", ["a: [", "just text", "phase: [1]", "a: 2026-13-45", "a: !!timestamp x", b"\xff\xfe"], ids=str
)
def test_a_damaged_status_is_one_sentence(tmp_path: Path, text: str | bytes) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.status_file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=r"status.yaml is damaged.*--fresh") as caught:
        folder.read_status()
    assert "\n" not in str(caught.value)


DEEP = "[" * 1000
NO_SPEC = "metadata: {name: job, uid: a}"


@pytest.mark.parametrize(
    "text", [DEEP, "spec: 1", "metadata: 1", NO_SPEC, f"{NO_SPEC}\nspec: {{stages: []}}"], ids=range(5)
)
def test_a_damaged_job_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = runfolder.RunFolder(tmp_path)
    folder.job_file.write_text(text)
    with pytest.raises(UserError, match=r"job.yaml is damaged.*--out") as caught:
        folder.read_job()
    assert "\n" not in str(caught.value)


def test_two_runs_cannot_have_the_folder_at_once(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    with folder.locked():
        assert folder.in_use()
        with pytest.raises(UserError, match="in use by another resnetboost run"), folder.locked():
            pass
    assert not folder.in_use()


def test_clearing_removes_only_our_files(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    folder.logs.mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    folder.clear(all_files=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "notes.txt"]


OWN_FILES = ("checkpoints/weights.pth", "logs/mine.txt", "volumes/v.txt", "report.html")
OF_A_CLUSTER = {"uid": "a", "resourceVersion": "7"}  # as `kubectl get -o yaml` prints it


@pytest.mark.parametrize("metadata", [{}, OF_A_CLUSTER], ids=["written", "printed by kubectl"])
@pytest.mark.parametrize("options", [[], ["--fresh"]], ids=["run", "run --fresh"])
def test_a_folder_with_the_users_own_files_is_refused(
    options: list[str], metadata: dict[str, str], tmp_path: Path
) -> None:
    own = job()
    own["metadata"] |= metadata
    (tmp_path / "job.yaml").write_text(yamltext.dump(own))
    for name in OWN_FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    ended = CliRunner().invoke(main, ["run", str(EXAMPLE), "--out", str(tmp_path), *options])
    assert ended.exit_code == 10 and "choose another --out" in ended.stderr
    assert all((tmp_path / name).read_text() == "mine" for name in OWN_FILES)
    assert not (tmp_path / ".lock").exists()


def test_the_run_of_a_job_that_kubectl_printed_can_be_resumed(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    printed = job()
    printed["metadata"] |= OF_A_CLUSTER
    with folder.locked():
        entered = folder.enter(printed)
    assert runfolder.open_for_run(tmp_path).enter(printed) == entered


def test_another_job_after_a_run_without_a_step_keeps_its_logs_and_volumes(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    folder.write_status(FAILED)
    for name in ("logs/digits-base-0-0.log", "volumes/claim/data.txt", "pods/digits-base-0-0/termination-log"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("kept")
    entered = entry.enter(folder, job(seed=5), False, lambda _: None)
    assert entered is not None and entered.spec.seed == 5
    assert (tmp_path / "logs/digits-base-0-0.log").exists() and (tmp_path / "volumes/claim/data.txt").exists()
    assert not (tmp_path / "pods").exists() and folder.read_status() == Status()


@pytest.mark.parametrize("all_files", [True, False], ids=["--fresh", "without a step"])
def test_a_kill_at_any_removal_leaves_a_run_folder(all_files: bool, tmp_path: Path) -> None:
    for kills in itertools.count():
        folder = runfolder.open_for_run(tmp_path / str(kills))
        kept = folder.enter(job())
        folder.write_status(Status(phase="Complete"))
        for name in ("checkpoints/a/b/attempt-0/step-1/manifest.json", "logs/rank.log", "pods/rank/log", "metrics.csv"):
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / name).touch()
        ended = interruption.killed_at_removal(kills, functools.partial(folder.clear, all_files=all_files))
        again = runfolder.open_for_run(folder.path)
        assert again.read_status() == Status() or (folder.checkpoints / "a/b/attempt-0/step-1/manifest.json").exists()
        entered = entry.enter(again, job(seed=5), True, lambda _: None)
        assert entered is not None and entered.uid != kept["metadata"]["uid"]
        if ended:
            assert kills > 5
            return


def test_a_look_at_the_lock_makes_no_start_fail(tmp_path: Path) -> None:
    folder, tries = runfolder.open_for_run(tmp_path), list[int]()
    with folder.locked():
        pass
    with (tmp_path / ".lock").open("rb") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)  # as another process that looks at it

        def hook(event: str, values: Any) -> None:
            if event == "fcntl.flock" and not looks.closed and values[1] & fcntl.LOCK_EX:
                tries.append(values[0])
                if len(tries) == 2:  # it was refused once
                    fcntl.flock(looks, fcntl.LOCK_UN)

        sys.addaudithook(hook)
        with folder.locked():
            assert len(tries) == 2


def test_two_processes_can_write_the_same_file_at_once(tmp_path: Path) -> None:
    path, both, errors = tmp_path / "metrics.csv", threading.Barrier(2), list[OSError]()

    def write(text: str) -> None:
        both.wait()
        try:
            for _ in range(200):
                runfolder.write(path, text)
        except OSError as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(letter * 5000,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors
    assert path.read_text() in ("a" * 5000, "b" * 5000) and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_no_run_folder_cannot_be_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        runfolder.open_existing(tmp_path)


def test_a_run_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    for name in ("roses", "digits"):
        runfolder.open_for_run(tmp_path / name).enter(job())
    with pytest.raises(UserError, match=r"there is no run .*/rose; .* holds digits, roses$"):
        runfolder.open_existing(tmp_path / "rose")
    with pytest.raises(UserError, match=r"holds no run$"):
        runfolder.open_existing(tmp_path / "nowhere" / "rose")


def test_a_run_is_found_by_its_name_in_the_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("runs", "digits"), Path("runs", "here"), Path("here"), Path("runs", "net.pth")):
        path.mkdir(parents=True)
        runfolder.open_for_run(path).enter(job())
    Path("net.pth").write_text("weights")
    for source, found in (("digits", "runs/digits"), ("runs/digits", "runs/digits"), ("here", "here")):
        assert place.named(source) == found
    for source in ("net.pth", "./digits", "nowhere", ".", "s3://digits"):
        assert place.named(source) == source


def test_an_address_is_no_folder_of_this_machine() -> None:
    with pytest.raises(UserError, match=r"^s3://bucket/run is an address, .*`resnetboost report s3://\.\.\.`"):
        runfolder.open_existing(Path("s3://bucket/run"))


FAILED = Status(
    phase="Failed",
    stage="base",
    attempt=3,
    attempt_start_time="2026-01-01T00:00:00Z",
    restarts=3,
    restarts_count_towards_max=3,
    conditions=(Condition("Failed", "True", "DataError", "no such file", ""),),
    stages=(StageStatus("base", state="Failed"),),
    attempts=(Attempt(3, "base", "DataError", "2026-01-01T00:00:09Z", exit_code=11),),
)


def test_a_failed_run_begins_with_a_new_attempt_and_a_new_budget() -> None:
    again = resumption.reopened(FAILED, ["base"])
    assert (again.attempt, again.attempt_start_time, again.restarts_count_towards_max) == (4, None, 0)
    assert (again.conditions, again.stages[0].state) == ((), "Pending")
    assert again.attempts == FAILED.attempts


def test_a_run_that_did_not_fail_begins_as_it_was_left() -> None:
    status = Status(phase="Running", attempt=2)
    assert resumption.reopened(status, ["base"]) == status


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status(conditions=(Condition("Complete", "True", "", "", ""),)), 0),
        (FAILED, 11),
        (Status(conditions=FAILED.conditions), 1),
        (Status(conditions=FAILED.conditions, attempts=(Attempt(0, "base", "Killed", "", exit_code=137),)), 1),
        (Status(conditions=(Condition("Suspended", "True", "", "", ""),)), 16),
        (Status(), 16),
    ],
    ids=["complete", "of the last attempt's class", "without an attempt", "killed", "stopped", "killed before"],
)
def test_exit_codes(status: Status, code: int) -> None:
    assert summary.exit_code(status) == code


@pytest.mark.parametrize("text", ["1e-4", "1.", ".5", "+7", "0o17", "on", "null", "2026-01-01", "1_000"])
def test_text_like_numbers_or_booleans_is_quoted(text: str) -> None:
    assert yamltext.dump({"value": text}) == f"value: '{text}'\n"


def test_numbers_are_read_back_by_either_version_of_yaml() -> None:
    assert yamltext.dump({"a": 1e-5, "b": 0.1, "c": 3, "d": True}) == "a: 1.0e-05\nb: 0.1\nc: 3\nd: true\n"


def test_the_closing_lines_name_the_address_of_the_checkpoints_copies(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    entered = folder.enter(job(checkpoint=job()["spec"]["checkpoint"] | {"url": "s3://bucket/kept/"}))
    uid, stage = entered["metadata"]["uid"], entered["spec"]["stages"][0]["name"]
    copies = f"  copies     s3://bucket/kept/{uid}"
    assert copies not in list(summary.closing_lines(folder, Status(), COMMANDS, 1)), "there is no checkpoint yet"
    saved = folder.checkpoints / uid / stage / "attempt-0" / "step-00000010"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    assert copies in list(summary.closing_lines(folder, Status(), COMMANDS, 1))


@pytest.mark.parametrize("reason", ["NumericsError", "Diverged", "ConfigError"])
def test_a_run_whose_fields_were_wrong_is_begun_anew_by_a_command_without_them(reason: str, tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    status = Status(phase="Failed", conditions=(Condition("Failed", "True", reason, "", ""),))
    folder.write_status(status)
    then = "  correct the job file or its --set, then  corrected command"
    assert list(summary.closing_lines(folder, status, COMMANDS, 1))[-1] == then, "nothing was trained yet"
    trained = msgspec.structs.replace(status, progress=Progress(stage="base", step=5))
    folder.write_status(trained)
    fresh = f"{then} --fresh  (deletes this run)"
    assert list(summary.closing_lines(folder, trained, COMMANDS, 1))[-1] == fresh


def test_a_run_whose_data_were_wrong_goes_on_with_the_same_command(tmp_path: Path) -> None:
    folder = runfolder.open_for_run(tmp_path)
    folder.enter(job())
    assert list(summary.closing_lines(folder, FAILED, COMMANDS, 1))[-1] == "  fix, then  command"


def test_the_command_for_other_fields_has_no_values_to_copy() -> None:
    found = command._commands(Path("job.yaml"), ["stages[0].learningRate.peak=900"], Path("runs/div"))
    assert found.again.endswith(" run job.yaml --set 'stages[0].learningRate.peak=900' --out runs/div")
    assert found.corrected.endswith(" run job.yaml --set ... --out runs/div")
