"""`resnetboost status` against a scripted API server: output, --watch, exit codes."""

import asyncio
import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from resnetboost_operator.cli.main import main
from resnetboost_operator.cli.status import cluster_jobs as cluster_status
from resnetboost_operator.cli.status import silence
from resnetboost_operator.kubeclient import client, lease, reflector
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.kubeclient.retry import Backoff
from support.clusterjobs import complete, failed, job, running, waiting
from support.scriptedserver import Answer, ScriptedServer, hangs_up, refuses, says, streams

JOBS = "/apis/resnetboost.io/v1alpha1/namespaces/team-a/resnetboostjobs"
PATIENCE_SECONDS = 30


class Cluster:
    """An API server in a thread, and a kubeconfig for it."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.server: ScriptedServer

    @contextlib.contextmanager
    def answering(self, *answers: Answer) -> Iterator[None]:
        started, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            async with ScriptedServer(answers) as self.server:
                self.write(server=self.server.client.host)
                started.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        started.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    def write(self, server: str, **user: str) -> None:
        context = {"cluster": "c", "user": "u", "namespace": "team-a"}
        content = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "old", **user}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(silence, "QUIET_SECONDS", float("inf"))  # the jobs' statuses have old times
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.02))
    monkeypatch.setattr(reflector, "BACKOFF", Backoff(0.01, 0.02))
    monkeypatch.chdir(tmp_path)
    found = Cluster(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
    signal.signal(signal.SIGALRM, never_ends)
    signal.alarm(PATIENCE_SECONDS)
    yield found
    signal.alarm(0)


def never_ends(*_: object) -> None:
    raise AssertionError("it follows for ever what has ended")


def status(*words: str) -> Result:
    return CliRunner().invoke(main, ["status", *words])


def listed(*jobs: dict[str, Any]) -> Answer:
    return says({"metadata": {"resourceVersion": "5"}, "items": list(jobs)})


def event(kind: str, version: int, status: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    found = job(status=status, **changes)
    found["metadata"]["resourceVersion"] = str(version)
    return {"type": kind, "object": found}


def told(result: Result) -> list[str]:
    """Lines about changes, without the leading time of day."""
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in result.stdout.splitlines()]


def test_the_jobs_of_the_contexts_namespace(cluster: Cluster) -> None:
    with cluster.answering(listed(job("a", running()), job("b", waiting()))):
        result = status()
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "a", "b"]
    assert (result.exit_code, result.stderr) == (0, "")
    assert cluster.server.requests == [f"GET {JOBS}?limit=500"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            says({"items": [lease.manifest("rnb", "ops", Lease("op_1", 15, version="1"))]}),
            "no operator has looked at this",
        ),
        (says({"items": []}), "no news of it"),
        (refuses(403), "no news of it"),
    ],
    ids=["a lease of long ago", "no lease", "no right"],
)
def test_a_job_that_was_not_heard_of_for_long_has_the_leases_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answer: Answer, sentence: str
) -> None:
    monkeypatch.setattr(silence, "QUIET_SECONDS", 60.0)
    with cluster.answering(listed(job("a", running())), answer):
        result = status()
    assert (result.exit_code, result.stderr) == (0, "")
    assert sentence in result.stdout
    assert cluster.server.requests[1:] == [
        "GET /apis/coordination.k8s.io/v1/leases?labelSelector=resnetboost.io/lease%3Doperator"
    ]


def test_all_namespaces(cluster: Cluster) -> None:
    with cluster.answering(listed(job("a", running()))):
        result = status("-A")
    assert result.stdout.splitlines()[1].split()[:2] == ["team-a", "a"]
    assert cluster.server.requests == ["GET /apis/resnetboost.io/v1alpha1/resnetboostjobs?limit=500"]


def test_one_job_with_its_events(cluster: Cluster) -> None:
    happened = {"type": "Normal", "reason": "GangStarting", "message": "attempt 0", "involvedObject": {}}
    with cluster.answering(listed(job(status=running())), says({"items": [happened]})):
        result = status("digits", "-n", "team-a")
    assert result.stdout.startswith("digits in team-a: Running")
    assert "  event       GangStarting: attempt 0\n" in result.stdout
    assert cluster.server.requests == [
        f"GET {JOBS}?fieldSelector=metadata.name%3Ddigits&limit=500",
        "GET /api/v1/namespaces/team-a/events?fieldSelector=involvedObject.uid%3Duid-of-digits&limit=500",
    ]


def test_a_user_without_rights_to_events_sees_the_job(cluster: Cluster) -> None:
    with cluster.answering(listed(job(status=running())), refuses(403, message="you may not list events")):
        result = status("digits")
    assert (result.exit_code, "could not be read: you may not list events" in result.stdout) == (0, True)


def test_failing_events_have_a_reason(cluster: Cluster) -> None:
    with cluster.answering(listed(job(status=running())), *[refuses(503, message="etcd is away")] * 2):
        result = status("digits")
    assert (result.exit_code, result.stdout.count("digits in team-a")) == (0, 1)
    assert re.search(r"could not be read: .*etcd is away", result.stdout)
    assert "may not" not in result.stdout


@pytest.mark.parametrize(
    ("words", "answers", "sentence"),
    [
        ((), [refuses(401)] * 2, "does not know you: the credentials have expired; log in again"),
        ((), [refuses(403, message="you may not")], "you may not; ask for the verbs list and watch on resnetboostjobs"),
        ((), [refuses(404)], "does not know the kind ResNetBoostJob; helm install "),
        ((), [hangs_up()] * 8, "is this the right cluster, and is it up"),
        ((), [refuses(503)] * 2, "is this the right cluster, and is it up"),
        ((), [says("hello")], "is not a Kubernetes API server"),
        (("digit",), [listed(), listed(job())], "there is no job digit in namespace team-a; did you mean digits?"),
        (
            ("mine",),
            [listed(), listed(job())],
            "no job mine in namespace team-a; resnetboost status -n team-a lists 1 ",
        ),
        (("mine",), [listed(), listed()], "no job mine in namespace team-a; there is none at all; -A looks in all"),
        (("Mine",), [], "'Mine' can be no job's name"),
        (("-n", "../x"), [], "'../x' can be no namespace's name"),
        (("-A", "-n", "x"), [], "-A means all namespaces, -n means one of them"),
        (("-A", "digits"), [], "the job digits is in one; use -n"),
        (("runs/digits", "-n", "x"), [], "runs/digits is a folder, and -n, -A and -o are for jobs"),
        (("./nowhere",), [], "there is no run nowhere; runs holds no run"),
    ],
    ids=[
        *("credentials", "rights", "no definition", "no answer", "unavailable", "no API server", "nearest name"),
        *("other jobs", "no jobs", "no name", "no namespace", "all and one", "all and a job", "a folder", "no folder"),
    ],
)
def test_a_failing_request_is_one_sentence(
    cluster: Cluster, words: tuple[str, ...], answers: list[Answer], sentence: str
) -> None:
    with cluster.answering(*answers):
        result = status(*words)
    assert sentence in result.stderr
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (10, "", 1)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no kubeconfig"),
        ("", "set KUBECONFIG"),
        ("clusters: [", "set KUBECONFIG"),
        ("- a list", "set KUBECONFIG"),
        ("current-context: nowhere\ncontexts: []\nclusters: []\nusers: []", "set KUBECONFIG"),
    ],
    ids=["none", "empty", "no YAML", "a list", "no context"],
)
def test_a_kubeconfig_that_cannot_be_used_is_a_sentence(cluster: Cluster, content: str | None, sentence: str) -> None:
    if content is not None:
        cluster.kubeconfig.write_text(content)
    result = status()
    assert sentence in result.stderr
    assert (result.exit_code, len(result.stderr.splitlines())) == (10, 1)


def test_an_empty_namespace_is_no_error(cluster: Cluster) -> None:
    with cluster.answering(listed()):
        result = status()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "there are no jobs in namespace team-a; -A looks in all" in result.stderr


def test_a_name_that_is_also_a_folder_is_ambiguous(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "job.yaml").write_text("{}")
    result = status("digits")
    assert (result.exit_code, "write ./digits for the folder, digits -n NAMESPACE" in result.stderr) == (10, True)
    with cluster.answering(listed(job(status=running())), says({"items": []})):
        assert status("digits", "-n", "team-a").exit_code == 0


def run_here(folder: Path) -> None:
    """A local run that has started."""
    place = folder / "runs" / "digits"
    place.mkdir(parents=True)
    spec = {"device": {"type": "CPU", "count": 1}, "model": {"name": "resnet20"}, "dataset": {"name": "digits"}}
    manifest = {"metadata": {"name": "digits", "uid": "u"}, "spec": {**spec, "stages": [{"name": "base"}]}}
    (place / "job.yaml").write_text(yaml.safe_dump(manifest))


def test_runs_of_this_machine_stand_before_the_jobs_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    run_here(tmp_path)
    with cluster.answering(listed(job("a", running()))):
        result = status()
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[:1] for line in result.stdout.splitlines()] == [["NAME"], ["runs/digits"], [], ["NAME"], ["a"]]
    with cluster.answering(listed(job(status=running())), says({"items": []})):
        both = status("digits")
    assert "digits in runs/digits: not begun" in both.stdout and "digits in team-a: Running" in both.stdout


def test_a_cluster_that_does_not_answer_hides_no_run(cluster: Cluster, tmp_path: Path) -> None:
    run_here(tmp_path)
    with cluster.answering(*([refuses(503)] * 2)):
        result = status()
    assert "runs/digits" in result.stdout
    assert (result.exit_code, len(result.stderr.splitlines())) == (10, 1)


def test_an_ambiguous_name_with_watch_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """`status digits -w && kubectl delete rbj digits` must not succeed because a local run ended."""
    run_here(tmp_path)
    result = status("digits", "-w")
    assert (result.exit_code, result.stdout) == (10, "")
    assert "write runs/digits -w for the folder, digits -n NAMESPACE -w for a job of the cluster" in result.stderr


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_json_output_has_the_objects(cluster: Cluster, form: str) -> None:
    hostile = job(status=failed("\x1b[2J\u202e"))
    hostile["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    with cluster.answering(listed(hostile)):
        result = status("-o", form)
    (found,) = yaml.safe_load(result.stdout)["items"]
    assert found["status"] == hostile["status"]
    assert found["metadata"].keys() == job()["metadata"].keys()
    assert "\x1b" not in result.stdout
    with cluster.answering(listed(hostile)):
        assert yaml.safe_load(status("digits", "-o", form).stdout) == found


@pytest.mark.parametrize(
    ("end", "code"),
    [(event("MODIFIED", 7, complete()), 0), (event("MODIFIED", 7, failed()), 1), (event("DELETED", 7, running()), 1)],
    ids=["complete", "failed", "deleted"],
)
def test_a_job_is_followed_to_its_end(cluster: Cluster, end: dict[str, Any], code: int) -> None:
    another = event("ADDED", 8, waiting())
    another["object"]["metadata"]["uid"] = "another"
    events = (event("MODIFIED", 6, running()), end, another)
    with cluster.answering(listed(job(status=waiting())), streams(*events)):
        result = status("digits", "-w")
    assert result.exit_code == code
    assert told(result)[0].startswith("digits  Starting")
    assert "resourceVersion=5" in cluster.server.requests[1]
    assert len(cluster.server.requests) == 2


def test_a_job_that_is_over_needs_no_watch(cluster: Cluster) -> None:
    with cluster.answering(listed(job(status=complete()))):
        assert status("digits", "-w").exit_code == 0
    assert len(cluster.server.requests) == 1


def test_missed_events_are_recovered_by_a_list(cluster: Cluster) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    answers = (listed(job(status=waiting())), streams(gone), listed(event("", 9, complete())["object"]))
    with cluster.answering(*answers):
        assert status("digits", "-w").exit_code == 0


def test_a_job_deleted_while_nobody_listened_is_missed(cluster: Cluster) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    emptied = says({"metadata": {"resourceVersion": "9"}, "items": []})
    with cluster.answering(listed(job(status=waiting())), streams(gone), emptied):
        result = status("digits", "-w")
    assert (result.exit_code, "digits is deleted" in result.stderr) == (1, True)


def test_a_connection_problem_is_reported_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_status, "TICK_SECONDS", 0.001)
    answers = [*([refuses(500)] * 20), streams(event("MODIFIED", 7, complete()))]
    with cluster.answering(listed(job(status=running())), *answers):
        result = status("digits", "-w")
    assert result.exit_code == 0
    assert [line.endswith("; trying again") for line in result.stderr.splitlines()] == [True]
    assert len(told(result)) == 2


def test_a_job_deleted_at_its_end_is_complete(cluster: Cluster) -> None:
    end = (event("MODIFIED", 7, complete()), event("DELETED", 8, complete()))
    with cluster.answering(listed(job(status=running())), streams(*end)):
        assert status("digits", "-w").exit_code == 0


def test_credentials_that_expire_are_read_anew(cluster: Cluster) -> None:
    taken: list[str] = []

    async def expired(request: web.Request) -> web.StreamResponse:
        taken.append(request.headers["Authorization"])
        cluster.write(server=cluster.server.client.host, token="new")
        return await refuses(401)(request)

    async def renewed(request: web.Request) -> web.StreamResponse:
        taken.append(request.headers["Authorization"])
        return await streams(event("MODIFIED", 7, complete()))(request)

    with cluster.answering(listed(job(status=running())), expired, renewed):
        assert status("digits", "-w").exit_code == 0
    assert taken == ["Bearer old", "Bearer new"]


def test_json_output_has_each_change_of_a_followed_job(cluster: Cluster) -> None:
    events = (event("MODIFIED", 6, running()), event("MODIFIED", 7, complete()))
    with cluster.answering(listed(job(status=waiting())), *map(streams, events)):
        result = status("digits", "-w", "-o", "json")
    phases = [json.loads(line)["status"]["phase"] for line in result.stdout.splitlines()]
    assert phases == ["Starting", "Running", "Complete"]
