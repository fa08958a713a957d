"""The doctor's self-checks: what the comparison concludes, and what leaves the machine in a bug report."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resnetboost_api import findings
from resnetboost_trainer.doctor import bug_report, redact
from resnetboost_trainer.doctor.host import Host
from resnetboost_trainer.selfcheck import cases, verdict
from resnetboost_trainer.selfcheck.cases import Numbers, Results
from resnetboost_trainer.selfcheck.gang import Ended

GOOD = Numbers((2.3, 2.2, 2.1), (1.5, 1.4, 1.3), 0.05, 4.0)


def ended(trouble: str = "", **changes: Any) -> Ended:
    whole = Results("Ascend", 2, 3.0, 900.0, dict.fromkeys(cases.ALGORITHMS, GOOD))
    return Ended(msgspec.structs.replace(whole, **changes), trouble, 60.0)


def levels(found: Ended, reference: Ended | None = None) -> dict[str, str]:
    return {one.check: one.level for one in verdict.judge(found, reference or ended())}


def test_equal_numbers_are_ok() -> None:
    assert set(levels(ended()).values()) == {"ok"}
    assert levels(ended()).keys() == {"all-reduce", *cases.ALGORITHMS}


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": (2.3, 2.2, 2.4)},
        {"losses": (2.3, math.nan, 2.1)},
        {"gradient_norms": (1.5, 1.4, 1.43)},
        {"moved": 0.06},
        {"moved": math.inf},
    ],
)
def test_other_numbers_are_a_problem_of_that_algorithm(changes: dict[str, Any]) -> None:
    algorithms = {**dict.fromkeys(cases.ALGORITHMS, GOOD), "THOR": msgspec.structs.replace(GOOD, **changes)}
    found = levels(ended(algorithms=algorithms))
    assert found.pop("THOR") == "problem" and set(found.values()) == {"ok"}


def test_a_device_may_round_more_than_a_cpu() -> None:
    rounded = msgspec.structs.replace(GOOD, gradient_norms=(1.5, 1.4, 1.32))
    algorithms = dict.fromkeys(cases.ALGORITHMS, rounded)
    assert levels(ended(algorithms=algorithms))["PCA"] == "ok"
    assert levels(ended(algorithms=algorithms, device="CPU"))["PCA"] == "problem"


@pytest.mark.parametrize(
    ("changes", "level"),
    [({"reduced": 2.0}, "problem"), ({"reduced": math.nan}, "problem"), ({"reduced": None}, "problem")],
)
def test_a_wrong_or_missing_sum(changes: dict[str, Any], level: str) -> None:
    assert levels(ended(**changes))["all-reduce"] == level


def test_an_algorithm_that_failed_and_those_that_never_began() -> None:
    found = ended("rank 1 was ended by SIGSEGV", algorithms={"Momentum": GOOD}, failed={"THOR": "OutOfMemory: 2 GB"})
    told = {one.check: one for one in verdict.judge(found, ended())}
    assert "OutOfMemory: 2 GB" in told["THOR"].message and "SIGSEGV" in told["PCA"].message
    assert [told[name].level for name in cases.ALGORITHMS] == ["ok", "problem", "problem", "problem"]


def test_a_gang_that_never_began_and_a_reference_that_did_not_end() -> None:
    nothing = Ended(None, "rank 0 ended with exit code 1", 3.0)
    assert {one.check: one.level for one in verdict.judge(nothing, None)} == {"self-check": "problem"}
    late = ended("rank 0 did not finish within 3 s", algorithms={"Momentum": GOOD})
    found = levels(ended(), late)
    assert (found["Momentum"], found["THOR"], found["self-check"]) == ("ok", "warning", "warning")


SECRETS = (
    "HF_TOKEN=hf_abc123def",
    "--password hunter2",
    'aws_secret_access_key: "AKIAabc"',
    "Authorization: Bearer eyJhbGciOi",
    "https://alice:hunter2@registry.example/x",
    "10.12.13.14",
    "fe80:0:0:0:42:acff:fe11:2",
    "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "/home/alice/data on gpu-node-17",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_bug_report_has_no_secrets(secret: str) -> None:
    shown = redact.text(f"before {secret} after", {"alice": "<user>", "gpu-node-17": "<host>"})
    for word in ("hf_abc123def", "hunter2", "AKIAabc", "eyJ", "10.12", "acff", "3f2504e0", "alice", "gpu-node-17"):
        assert word not in shown
    assert shown.startswith("before") and shown.endswith("after")


def test_a_bug_report_is_bounded_and_has_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESNETBOOST_TEST_VALUE", "an-own-value")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npu-smi").write_text("#!/bin/sh\nyes 'a line of a table' | head -c 5000000\n")
    (programs / "npu-smi").chmod(0o755)
    log = {"rank-0.log": "x" * 10**6, "rank-1.log": "a line\n" * 10**5}
    file = tmp_path / "report.json"
    host = Host(tmp_path, {"PATH": f"{programs}:/usr/bin:/bin", "RESNETBOOST_TEST_VALUE": "an-own-value"})
    bug_report.write(file, [findings.ok("a", "b")], {"device": Ended(None, "no", 1.0, log)}, host)
    text = file.read_text()
    assert len(text) < 100_000 and "an-own-value" not in text and str(tmp_path) not in text
    told = json.loads(text)
    assert told["findings"] == [{"check": "a", "level": "ok", "message": "b"}]
    assert "a line of a table" in told["programs"]["npu-smi info"]
    assert {path.name for path in tmp_path.iterdir()} == {"programs", "report.json"}, "no partial file is left"
