"""Text of `resnetboost status` for a cluster's jobs, at every terminal width and in every state."""

import io
import shlex
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from resnetboost_api.status import RollBack
from resnetboost_operator.cli.status import job_facts, job_table, job_view, silence
from resnetboost_operator.cli.status.job_page import JobPage
from resnetboost_operator.cli.status.job_table import JobTable
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.view import text
from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.kubeclient.reader import Event
from resnetboost_operator.observed import pods
from support import clusterjobs
from support.clusterjobs import (
    KILLED,
    NOW,
    QUOTA,
    UNSCHEDULABLE,
    complete,
    condition,
    failed,
    job,
    queued,
    running,
    waiting,
)

HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07not\x1b[2J a\x08 zip\x9b5A \u202efile\tend"
HARMLESS = "red not a\\x08 zip\\x9b5A \\u202efile end"
EVERY_STATE = {
    "running": running(attempts=[KILLED], restarts=1, goodput={"percent": 80, "attemptSeconds": 620}),
    "waiting": waiting(),
    "queued": queued(),
    "failed": failed(attempts=[KILLED | {"message": HOSTILE}]),
    "complete": complete(),
    "unseen": None,
}


def view(status: dict[str, Any] | None, name: str = "digits", **changes: Any) -> JobView:
    return job_view.read(job(name, status, **changes))


def drawn(shown: RenderableType, width: int = 0) -> list[str]:
    """Lines drawn on a terminal of that width; 0: in a file."""
    file = io.StringIO()
    terminal = {"force_terminal": True, "width": width, "color_system": None} if width else {}
    Console(file=file, highlight=False, markup=False, **terminal).print(shown, soft_wrap=not width)  # type: ignore[arg-type]
    return [line.rstrip() for line in file.getvalue().splitlines()]


def table(*jobs: JobView, width: int = 0, namespaces: bool = False) -> list[str]:
    return drawn(JobTable(job_table.in_order(jobs), NOW, namespaces), width)


def page(found: JobView, width: int = 0) -> list[str]:
    return drawn(JobPage(found, (), NOW), width)


def test_a_file_gets_every_column_and_a_line_for_each_job() -> None:
    lines = table(view(running()), view(waiting(), "waits"))
    assert lines[0].split() == [
        *("NAME", "PHASE", "STAGE", "ALGORITHM", "DONE", "STEP", "LOSS", "ACCURACY", "TOP-1", "IMAGES/S"),
        *("RANKS", "RESTARTS", "GOODPUT", "ETA", "AGE", "WHY"),
    ]
    assert lines[1].split() == [
        *("digits", "Running", "base", "Momentum", "60", "%", "264/440", "0.512", "97.8", "%", "1234"),
        *("2/2", "0", "0:42", "5:00"),
    ]
    assert lines[2].endswith(UNSCHEDULABLE)
    assert len(lines) == 3


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140, 200])
def test_nothing_is_wider_than_its_terminal(width: int) -> None:
    jobs = [view(status, f"{name}-{'x' * 30}") for name, status in EVERY_STATE.items()]
    lines = table(*jobs, width=width, namespaces=True) + [line for found in jobs for line in page(found, width)]
    wide = [line for line in lines if len(line) > width and not line.startswith(("  →", "    "))]
    assert wide == []


@pytest.mark.parametrize(
    ("width", "there", "gone"),
    [
        (60, ("NAME", "PHASE", "DONE", "LOSS", "AGE"), ("ETA", "GOODPUT", "ALGORITHM")),
        (100, ("STEP", "ACCURACY", "RANKS", "RESTARTS"), ("GOODPUT",)),
        (200, ("STAGE", "ALGORITHM", "IMAGES/S", "GOODPUT", "ETA", "━━━━━━────"), ("WHY",)),
    ],
    ids=["narrow", "usual", "wide"],
)
def test_the_columns_that_matter_most_stay(width: int, there: tuple[str, ...], gone: tuple[str, ...]) -> None:
    text = "\n".join(table(view(running()), width=width))
    assert [word for word in there if word not in text] == []
    assert [word for word in gone if word in text] == []


def test_a_jobs_problem_is_shown_in_full_below_it() -> None:
    lines = table(view(waiting()), view(running(), "zeta"), width=50)
    under = lines[2 : lines.index(next(line for line in lines if line.startswith("zeta")))]
    assert " ".join(line.strip() for line in under) == UNSCHEDULABLE
    assert all(line.startswith("  ") for line in under)


def test_unfinished_jobs_come_first() -> None:
    lines = table(view(complete(), "a"), view(failed(), "b"), view(running(), "y"), view(waiting(), "x"))
    assert [line.split()[0] for line in lines[1:]] == ["x", "y", "a", "b"]


def in_queue(status: dict[str, Any], queue: str = "team-a", name: str = "digits") -> JobView:
    manifest = job(name, status)
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    return job_view.read(manifest)


def test_a_queued_job_says_in_which_queue_for_how_long_and_why() -> None:
    found = in_queue(queued())
    sentence = f"queued in team-a for 3:09: {QUOTA}"
    assert table(found)[1].split()[:2] == ["digits", "Queued"]
    assert table(found)[1].endswith(f"  {sentence}")
    assert page(found) == [
        "digits in team-a: Queued, 5:00 old",
        "  resnet20 on digits · 2 CPU ranks · global batch 64 · seed 0",
        f"  {sentence}",
        "  stage base  Queued · Momentum · 1 attempt",
        "  ranks       0/2 run · 0 ready",
        "  queue       team-a · WaitingForQuota for 3:09",
        "  restarts    0, of which 0 count towards maxRestarts (5)",
        "  next        kubectl describe workloads.kueue.x-k8s.io -n team-a -l resnetboost.io/job=digits",
    ]
    assert any("queued for 3:09" in line for line in page(found, 100)), "beside the stage's bar"


def test_a_queued_job_is_the_same_line_however_long_it_waits() -> None:
    line = job_table.change(in_queue(queued()), namespaces=False)
    assert line == f"digits  Queued  base  queued in team-a: {QUOTA}"


def test_a_job_that_was_admitted_says_since_when() -> None:
    admitted = condition("Admitted", True, "Admitted", "The workload is admitted")
    status = running()
    status["conditions"] = [admitted, *status["conditions"]]
    assert "  queue       team-a · admitted 0:30 ago" in page(in_queue(status))
    assert not [line for line in page(in_queue(complete())) if "queue" in line]


def test_a_job_that_runs_without_its_queue_says_why() -> None:
    status = running()
    status["conditions"] = [condition("Admitted", False, "KueueDisabled", "no effect; set kueue.enabled")]
    assert "  queue       team-a · KueueDisabled: no effect; set kueue.enabled" in page(in_queue(status))


def test_queued_jobs_come_between_those_at_work_and_those_that_are_over() -> None:
    lines = table(view(complete(), "a"), in_queue(queued(), name="b"), view(running(), "y"), view(waiting(), "x"))
    assert [line.split()[0] for line in lines[1:]] == ["x", "y", "b", "a"]


LONG_AGO, JUST_NOW = NOW - 189, NOW - 5


def held(renewed: float, holder: str = "op_1") -> Lease:
    return Lease(holder, 15, renew_time=leases.timestamp(renewed), version="1")


@pytest.mark.parametrize(
    ("found", "heard", "sentence"),
    [
        ([held(LONG_AGO)], LONG_AGO, "no operator has looked at this for 3:09"),
        ([held(JUST_NOW, holder="")], LONG_AGO, "no operator has looked at this for 0:05"),
        ([held(JUST_NOW)], LONG_AGO, ""),
        ([held(LONG_AGO), held(JUST_NOW)], LONG_AGO, ""),
        ([held(LONG_AGO)], JUST_NOW, ""),
        ([], LONG_AGO, "no news of it for 3:09: no operator runs, or its ranks hang"),
        (None, LONG_AGO, "no news of it for 3:09: no operator runs, or its ranks hang"),
        (None, JUST_NOW, ""),
    ],
    ids=[
        "stale",
        "given up",
        "held",
        "one of two is held",
        "heard just now",
        "none",
        "no right",
        "no right, heard just now",
    ],
)
def test_a_job_without_an_operator_says_so(found: list[Lease] | None, heard: float, sentence: str) -> None:
    condition_ = condition("Running", True, "Training", "all 2 ranks train") | {
        "lastTransitionTime": pods.timestamp(NOW - 250)
    }
    told = running(progress=clusterjobs.PROGRESS | {"heartbeatTime": pods.timestamp(heard)}, conditions=[condition_])
    seen = view(told)
    seen = replace(seen, silence=silence.of(seen.status, seen.created, found, NOW))
    assert job_view.why(seen, NOW).startswith(sentence)
    assert bool(job_view.why(seen, NOW)) == bool(sentence)
    assert sentence in "\n".join(table(seen))
    assert sentence in "\n".join(page(seen))
    if sentence:
        assert sentence.partition(" for ")[0] in job_table.change(seen, namespaces=False)
        assert "3:09" not in job_table.change(seen, namespaces=False), "no clock where lines are compared"


def test_a_job_of_an_unknown_priority_is_shown_those_there_are() -> None:
    status = queued()
    status["conditions"] = [condition("Admitted", False, "PriorityUnknown", "no such class"), *status["conditions"][1:]]
    assert page(in_queue(status))[-1].split() == ["next", "kubectl", "get", "workloadpriorityclasses"]


def test_a_finished_job_needs_no_operator() -> None:
    seen = view(complete(), age=9000)
    assert silence.of(seen.status, seen.created, [held(LONG_AGO)], NOW) is None


def test_namespaces_have_a_column_where_all_are_shown() -> None:
    assert table(view(running()), namespaces=True)[1].split()[:2] == ["team-a", "digits"]


def test_a_later_stage_is_counted_and_named_by_its_algorithm() -> None:
    stages = [{"name": "first", "state": "Complete"}, {"name": "base", "state": "Running"}]
    assert " base 2/2  Momentum " in table(view(running(stages=stages)))[1]


def test_a_finished_job_has_no_time_left_and_no_speed() -> None:
    row = " ".join(table(view(complete()))[1].split())
    assert row == "digits Complete base Momentum 100 % 440/440 0.512 97.8 % 99.4 % 2 0 5:00"


def test_progress_of_the_previous_stage_is_not_shown() -> None:
    assert "264/440" not in table(view(running(progress=clusterjobs.PROGRESS | {"stage": "first"})))[1]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (running(), ""),
        (complete(), ""),
        (None, job_view.UNSEEN),
        (waiting(), UNSCHEDULABLE),
        (waiting("Restarting", "rank 1 ended;\n the gang restarts in 10 s"), "rank 1 ended; the gang restarts in 10 s"),
        (failed("attempt 0: rank 1 ended"), "attempt 0: rank 1 ended"),
        (waiting("Suspended", "stopped on request", "Suspended"), "stopped on request"),
        (
            clusterjobs.status("Running", condition("Running", True, "RankUnreachable", "no connection")),
            "no connection",
        ),
        ({"phase": "Dancing", "stage": "base"}, job_view.UNKNOWN),
    ],
    ids=["trains", "complete", "unseen", "waits", "restarts", "failed", "suspended", "unheard", "of another version"],
)
def test_why_a_job_does_not_train(status: dict[str, Any] | None, expected: str) -> None:
    assert job_view.why(view(status)) == expected


def test_a_spec_of_another_version_still_has_a_status() -> None:
    found = view(running(), stages=[{"name": "base", "algorithm": "Magic"}])
    assert "264/440" in table(found)[1]
    assert job_view.UNKNOWN in table(found)[1]
    assert page(found)[0] == "digits in team-a: Running, 5:00 old"


def test_a_job_being_deleted_says_so() -> None:
    manifest = job(status=running())
    manifest["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
    assert job_view.why(job_view.read(manifest)) == job_view.DELETING


def test_control_characters_of_the_cluster_are_escaped() -> None:
    assert job_view.legible(HOSTILE) == HARMLESS
    found = view(failed(HOSTILE, attempts=[KILLED | {"exitCode": 11, "message": HOSTILE}]))
    for lines in (table(found), table(found, width=100), page(found), page(found, 100)):
        text = "".join(lines)
        assert HARMLESS.split()[-2] in text
        assert text.isprintable()
    assert job_table.change(found, namespaces=True).isprintable()


def test_the_page_of_one_job_has_every_field() -> None:
    status = running(
        attempts=[KILLED],
        restarts=1,
        restartsCountTowardsMax=1,
        goodput={
            "percent": 80,
            "attemptSeconds": 620,
            "productiveSeconds": 496,
            "productiveDeviceSeconds": 992,
            "repeatedSteps": 31,
            "lost": [
                {"reason": "Overhead", "failure": "", "deviceSeconds": 44},
                {"reason": "Replay", "failure": "Killed", "deviceSeconds": 124},
                {"reason": "Detection", "failure": "Hang", "deviceSeconds": 80},
                {"reason": "Queueing", "failure": "", "deviceSeconds": 600},
            ],
        },
    )
    assert page(view(status)) == [
        "digits in team-a: Running, 5:00 old",
        "  resnet20 on digits · 2 CPU ranks · global batch 64 · seed 0",
        "  stage base  Running · Momentum · epoch 13/20 · step 264/440 · loss 0.512 · accuracy 97.8 % · 1234 images/s"
        " · ETA 0:42 · 1 attempt",
        "  ranks       2/2 run · 2 ready",
        "  checkpoint  step 250",
        "  slowest     rank 1, 41.2 ms to compute a step",
        "  heartbeat   0:07 ago, after 10:00 without one the gang restarts",
        "  restarts    1, of which 1 count towards maxRestarts (5)",
        "  goodput     80 % of 10:20 in attempts that ended · lost 20 %: replay 10 %, detection 6 %, overhead 4 % · "
        "31 steps done twice",
        "  failures    cost device time: Killed 2:04, Hang 1:20",
        "  queueing    10:00 of device time, beside goodput",
        "  attempt 0   base ended with Killed · rank 1 on node-b · exit code 137 · after step 131 · "
        "checkpoint of step 100 · 3:40 ago",
    ]


def test_the_page_names_slow_ranks_with_their_place() -> None:
    slow = {"rank": 1, "index": 1, "seconds": 0.42, "median": 0.2, "sinceStep": 40, "since": pods.timestamp(NOW - 300)}
    placed = slow | {"rank": 3, "index": 2, "node": "node-b", "device": 5}
    status = running(progress=clusterjobs.PROGRESS | {"stragglers": [slow, placed]})
    assert [line for line in page(view(status)) if "median" in line] == [
        "  slow        rank 1 · 420 ms to compute a step · 2.1 times the gang's median · for 5:00",
        "  slow        rank 3 (pod 2) on node-b, device 5 · 420 ms to compute a step · 2.1 times the gang's median"
        " · for 5:00",
    ]


def test_a_job_names_the_rule_that_decided_and_the_nodes_it_avoids() -> None:
    attempt = {
        "attempt": 0,
        "stage": "base",
        "reason": "Killed",
        "endTime": pods.timestamp(NOW - 220),
        "rank": 1,
        "node": "node-b",
        "rule": "xid",
    }
    entry = {"node": "node-b", "points": 2, "since": pods.timestamp(NOW - 220), "until": pods.timestamp(NOW + 3380)}
    excluded = [
        {**entry, "reason": "rank 1 ended there"},
        {**entry, "node": "node-a", "until": pods.timestamp(NOW - 1)},
    ]
    lines = page(view(running(attempts=[attempt], excludedNodes=excluded)))
    assert "  avoids      node-b for 56:20: rank 1 ended there" in lines
    assert "  attempt 0   base ended with Killed · rank 1 on node-b · by rule xid · 3:40 ago" in lines
    assert not any("node-a" in line for line in lines), "its time is over"
    assert not any("avoids" in line for line in page(view(complete() | {"excludedNodes": excluded})))


def test_a_terminal_gets_a_bar_for_each_stage() -> None:
    lines = page(view(running()), 100)
    assert any("━━━━" in line and line.endswith("epoch 13/20  step 264/440") for line in lines)


def test_the_rank_table_says_what_is_missing() -> None:
    missing = condition("RankTableReady", False, "AnnotationsMissing", "1 of 2 pods have no annotation")
    status = waiting()
    lines = page(view(status | {"conditions": [*status["conditions"], missing]}))
    assert "  rank table  AnnotationsMissing: 1 of 2 pods have no annotation" in lines


def test_the_newest_attempts_are_shown_and_the_others_counted() -> None:
    lines = page(view(running(attempts=[KILLED | {"attempt": number} for number in range(12)])))
    shown = [line.split()[1] for line in lines if line.startswith("  attempt")]
    assert shown == ["11", "10", "9", "8", "7", "6", "5", "4"]
    assert lines[-1].strip() == "4 more in status.attempts"


def test_events_come_newest_first_and_harmless() -> None:
    told = [Event("Normal", "Old", "first"), Event("Warning", "GangRestart", HOSTILE, "2023-11-14T22:13:10Z")]
    facts = list(job_facts.events(told, NOW))
    assert facts == [("event", f"GangRestart: {HARMLESS} (0:10 ago)"), ("event", "Old: first")]
    assert list(job_facts.events("etcd\nis away", NOW)) == [("events", "could not be read: etcd is away")]


LOGS = "kubectl logs -n team-a digits-base-0-1"


@pytest.mark.parametrize(
    ("status", "spec", "expected"),
    [
        (running(), {}, ""),
        (complete(), {}, ""),
        (waiting("Starting", "1/2 ranks run"), {}, ""),
        (waiting(), {}, "kubectl describe pods -n team-a -l resnetboost.io/job=digits"),
        (waiting("PodsRefused", "quota"), {}, "kubectl describe resourcequotas -n team-a"),
        (waiting("NoGangScheduler", "none"), {}, "kubectl describe rbj -n team-a digits"),
        (waiting("PodsRefused", "no runtime class"), {}, "kubectl describe rbj -n team-a digits"),
        (failed(attempts=[KILLED]), {}, LOGS),
        (failed(attempts=[KILLED]), {"runPolicy": {"cleanPodPolicy": "All"}}, "kubectl describe rbj -n team-a digits"),
        (failed(), {}, "kubectl describe rbj -n team-a digits"),
        (None, {}, "resnetboost doctor --cluster"),
    ],
    ids=[
        "trains",
        "complete",
        "starts",
        "waits",
        "quota",
        "no gang scheduler",
        "refused",
        "failed",
        "no pods left",
        "no attempt",
        "no operator",
    ],
)
def test_suggested_commands(status: dict[str, Any] | None, spec: dict[str, Any], expected: str) -> None:
    found = job(status=status)
    found["spec"] |= {key: found["spec"][key] | value for key, value in spec.items()}
    assert " ".join(job_facts.advice(job_view.read(found))) == expected


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (running(), ["  checkpoint  none: without checkpoint.claimName or url they are lost with the pods"]),
        (complete(), []),
    ],
    ids=["while it runs", "when it is over"],
)
def test_a_job_without_a_claim_has_no_checkpoint(status: dict[str, Any], said: list[str]) -> None:
    spec: dict[str, Any] = {"checkpoint": {"everySteps": 20, "keep": 3, "resume": "Never", "keepCompiledGraphs": True}}
    assert [line for line in page(view(status, **spec)) if "checkpoint  " in line] == said


def test_the_suggested_command_resumes_a_suspended_job() -> None:
    manifest = job(status=waiting("Suspended", "stopped on request", "Suspended"))
    manifest["spec"]["runPolicy"]["suspend"] = True
    words = shlex.split(" ".join(job_facts.advice(job_view.read(manifest))))
    assert words[-2:] == ["-p", '{"spec": {"runPolicy": {"suspend": false}}}']


def test_a_long_command_continues_with_a_backslash() -> None:
    lines = page(view(waiting()), 40)
    command = "\n".join(lines[next(number for number, line in enumerate(lines) if "→" in line) :])
    assert len(command.splitlines()) > 1
    assert shlex.split(command.replace("→", "").replace("\\\n", ""))[-1] == "resnetboost.io/job=digits"


def test_a_change_is_a_line_without_clocks() -> None:
    line = job_table.change(view(running()), namespaces=True)
    assert line == (
        "team-a/digits  Running  base  epoch 13/20  step 264/440  loss 0.512  accuracy 97.8 %  1234 images/s  ETA 0:42"
    )
    assert line == job_table.change(view(running(), age=9000), namespaces=True)


def test_a_roll_back_is_told_in_a_line() -> None:
    back = RollBack(
        attempt=0,
        stage="base",
        from_step=181,
        at_most_step=131,
        learning_rate_factor=0.5,
        skip_to_batch=181,
        to_step=120,
    )
    line = "base diverged at step 181 of attempt 0 and went back to step 120 · the batches in between are skipped"
    assert text.roll_back(back) == f"{line} · learning rate x 0.5"
