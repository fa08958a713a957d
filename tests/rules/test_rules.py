"""Alert rules as promtool unit tests: when each alert fires, when it does not, and that it resolves."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "charts" / "resnetboost" / "rules").glob("*.yaml"))
STORIES = sorted(Path(__file__).parent.glob("*_test.yaml"))
RUNBOOK = ROOT / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def promtool() -> str:
    """Path of promtool; skips where there is none, but never in CI."""
    found = shutil.which("promtool")
    if found is None:
        words = "no promtool to judge the rules with; run scripts/install-system-packages"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(words)
    return found


def told(promtool: str, *arguments: object) -> str:
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def expectations() -> list[dict[str, Any]]:
    stories = [story for path in STORIES for story in yaml.safe_load(path.read_text())["tests"]]
    return [moment for story in stories for moment in story["alert_rule_test"]]


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_prometheus_takes_the_rules(path: Path, promtool: str) -> None:
    assert "SUCCESS" in told(promtool, "check", "rules", path)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_alerts_fire_and_end_as_the_stories_tell(path: Path, promtool: str) -> None:
    assert "SUCCESS" in told(promtool, "test", "rules", path)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
def test_each_alert_has_a_story_and_a_runbook(alert: dict[str, Any]) -> None:
    name, severity = alert["alert"], alert["labels"]["severity"]
    assert severity in ("warning", "critical")
    moments = [moment for moment in expectations() if moment["alertname"] == name]
    fired = [found for moment in moments for found in moment["exp_alerts"]]
    assert severity in [found["exp_labels"]["severity"] for found in fired]
    assert [] in [moment["exp_alerts"] for moment in moments]
    assert alert["annotations"]["runbook"] == f"docs/monitoring.md#{name.lower()}"
    assert f"\n### {name}\n" in RUNBOOK.read_text()


def test_a_section_of_the_runbook_is_of_an_alert() -> None:
    runbook = RUNBOOK.read_text().partition("\n## Alerts\n")[2]
    sections = {line.removeprefix("### ") for line in runbook.splitlines() if line.startswith("### ")}
    assert sections == {alert["alert"] for alert in alerts()}
