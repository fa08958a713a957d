"""The operator's command-line options, log lines, events and metrics."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from resnetboost_api.status import Status
from resnetboost_operator.controller import events, logs, main, options
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.manifests.devices import Images
from resnetboost_operator.planning.actions import Event

RECORD = JobRecord(
    uid="u-1", namespace="team", name="digits", version=7, deleting=False, job=None, status=Status(), problem=""
)


def test_defaults_are_all_namespaces_and_a_lease_in_its_own() -> None:
    found = options.from_environment()
    assert found.namespaces == ()
    assert (found.host, found.port) == ("", 8080)
    assert (found.lease_namespace, found.lease_name) == ("default", "resnetboost-operator")
    assert found.identity
    assert not found.kueue
    assert not found.gang_scheduling, "without the rights for them"


def test_every_option_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32 + "\n")
    given = {
        "NAMESPACE": "team-a team-b",
        "LISTEN": "127.0.0.1:0",
        "LEASE_NAMESPACE": "ops",
        "LEASE_NAME": "second",
        "IDENTITY": "me",
        "POD": "mine",
        "START_OVER": "true",
        "IMAGE_REGISTRY": "registry.example/mirror/",
        "TRAINER_IMAGE": "GPU=mine:1 Ascend=theirs@sha256:0a=",
        "TOKEN_KEY_FILE": str(tmp_path / "key"),
        "KUEUE": "true",
        "GANG_SCHEDULING": "true",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "WARNING",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"RESNETBOOST_OPERATOR_{name}", value)
    assert options.from_environment() == options.Options(
        namespaces=("team-a", "team-b"),
        host="127.0.0.1",
        port=0,
        lease_namespace="ops",
        lease_name="second",
        identity="me",
        pod="mine",
        start_over=True,
        log_format="json",
        log_level="warning",
        images=Images("registry.example/mirror", {"GPU": "mine:1", "Ascend": "theirs@sha256:0a="}),
        kueue=True,
        gang_scheduling=True,
        token_key=b"k" * 32,
    )


@pytest.mark.parametrize("address", ["8080", "localhost", "localhost:", "localhost:http", "localhost:70000"])
def test_an_address_that_cannot_work_is_refused_with_the_remedy(address: str) -> None:
    done = CliRunner().invoke(main.main, ["--listen", address])
    assert done.exit_code == 2
    assert "write HOST:PORT, or :PORT for all addresses" in done.output


@pytest.mark.parametrize("given", ["mine:1", "NPU=mine:1", "GPU="])
def test_an_image_of_no_device_type_is_refused_with_the_remedy(given: str) -> None:
    done = CliRunner().invoke(main.main, ["--trainer-image", given])
    assert done.exit_code == 2
    assert "write CPU=IMAGE, Ascend=IMAGE, GPU=IMAGE" in " ".join(done.output.split())


@pytest.mark.parametrize(("key", "remedy"), [("short\n", "openssl rand -hex 32"), (None, "mount the Secret")])
def test_a_key_that_protects_nothing_is_refused_with_the_remedy(tmp_path: Path, key: str | None, remedy: str) -> None:
    if key is not None:
        (tmp_path / "key").write_text(key)
    done = CliRunner().invoke(main.main, ["--token-key-file", str(tmp_path / "key")])
    assert done.exit_code == 2
    assert remedy in " ".join(done.output.split())


@pytest.mark.slow
def test_a_missing_kubeconfig_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "resnetboost_operator", "--listen=127.0.0.1:0"]
    environment = {**os.environ, "KUBECONFIG": f"{tmp_path}/none"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 10
    assert done.stderr == (
        f"resnetboost-operator: there is no kubeconfig {tmp_path}/none; "
        "set KUBECONFIG, or run in a pod with a service account\n"
    )


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("kube", logging.WARNING, "file", 1, message, None, None)


def test_a_line_names_the_job_it_is_about() -> None:
    plain, as_json = logs.formatter("plain"), logs.formatter("json")
    with logs.about("team/digits"):
        assert plain.format(record("it began")).endswith("WARNING team/digits: it began")
        line = json.loads(as_json.format(record('a "quoted"\nline')))
    assert (line["job"], line["message"], line["level"]) == ("team/digits", 'a "quoted"\nline', "WARNING")
    assert plain.format(record("it began")).endswith("WARNING it began")
    assert "job" not in json.loads(as_json.format(record("it began")))


def test_a_ranks_message_is_one_escaped_line() -> None:
    assert logs.formatter("plain").format(record("a\nb\x1b[2Jc é")).endswith(r" a\nb\x1b[2Jc é")


def test_an_event_is_valid_and_has_a_unique_name() -> None:
    told = Event("Warning", "GangRestart", "x" * 5000)
    first, second = (events.manifest(RECORD, told, "me", now=0.0) for _ in range(2))
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert len(first["message"]) == 1024
    about = first["involvedObject"]
    assert (about["kind"], about["name"], about["namespace"], about["uid"]) == (
        "ResNetBoostJob",
        "digits",
        "team",
        "u-1",
    )
    assert (first["metadata"]["namespace"], first["reportingComponent"]) == ("team", "resnetboost-operator")


def test_jobs_are_counted_by_phase_and_a_phase_without_jobs_is_gone() -> None:
    metrics, phases = Metrics(), ["Running", "Running", "Failed"]
    metrics.watch_phases(lambda: phases)
    assert b'resnetboost_operator_jobs{phase="Running"} 2.0' in metrics.text()
    assert b'resnetboost_operator_jobs{phase="Failed"} 1.0' in metrics.text()
    phases.remove("Failed")
    assert b'phase="Failed"' not in metrics.text()
