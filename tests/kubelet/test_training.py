"""Training in real pods from this tree's images, through a killed container and an operator upgrade."""

import datetime
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.kubelet import Bed, containers, images, operatorpod
from beds.operator import Space
from beds.operator.namespace import JOB
from beds.operator.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
CLAIM = "checkpoints"
GOOD_TOP1 = 0.97
STEPS_OF_AN_EPOCH = 22  # of 1437 images, 2 ranks with 32 each
# Progress is reported every 15 s: the example's six epochs would be over before a rank can be killed.
EPOCHS = {"epochs": 120, "evaluateEveryEpochs": 20}


def test_a_gang_survives_a_killed_container_and_an_upgrade_and_learns(
    bed: Bed, space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.add_claim(space.namespace, CLAIM)
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["checkpoint"]["claimName"] = CLAIM
    manifest["spec"]["stages"][0] |= EPOCHS
    applied = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # in the pods' format
    space.create(manifest)
    space.until(lambda status: saved(status) >= 20, "a checkpoint is saved")
    timeline = times(space, "digits-base-0-0", applied)
    eventually(lambda: is_ready(space, "digits-base-0-0"), bool, "kubelet hears that rank 0 takes steps")

    containers.kill(bed, space.namespace, "digits-base-0-1")
    operatorpod.replace(bed.plane)
    status = space.until_phase("Complete")

    (first,) = status["attempts"]  # the failed ones
    assert (first["exitCode"], first["rank"]) == (137, 1)
    assert first["checkpointStep"] >= 20
    assert f"resumed from the checkpoint of step {first['checkpointStep']}" in log(space, "digits-base-1-0")
    assert status["restarts"] == 1
    assert status["stages"][0]["top1"] >= GOOD_TOP1
    with capsys.disabled():
        tell(timeline)


@pytest.mark.parametrize("restart_in", ["Pod", "NewPod"])
def test_a_killed_rank_starts_again_where_the_policy_says(
    bed: Bed, space: Space, capsys: pytest.CaptureFixture[str], restart_in: str
) -> None:
    bed.add_claim(space.namespace, CLAIM)
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["checkpoint"]["claimName"] = CLAIM
    manifest["spec"]["stages"][0] |= EPOCHS
    manifest["spec"]["failurePolicy"] = {"restartIn": restart_in, "backoffSeconds": 0}
    space.create(manifest)
    space.until(lambda status: saved(status) >= 20, "a checkpoint is saved")
    before = pods(space)

    containers.kill_rank(bed, space.namespace, "digits-base-0-1")
    killed = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    status = space.until(
        lambda status: status["attempt"] == 1 and saved(status) > status["attempts"][0]["checkpointStep"],
        "the next attempt saves a checkpoint",
    )

    after = pods(space)
    assert (after == before) == (restart_in == "Pod")
    assert all(restarts == 0 for _, restarts in after.values())
    assert (status["attempts"][0]["rank"], status["attempts"][0]["exitCode"]) == (1, 137)
    assert status.get("podsAttempt") == (0 if restart_in == "Pod" else None)
    with capsys.disabled():
        print(f"\n{restart_in}: {first_resumed_step(space, min(after)) - killed} from the kill to the next step")


def test_a_job_that_is_scaled_goes_on_from_its_checkpoint(bed: Bed, space: Space) -> None:
    bed.add_claim(space.namespace, CLAIM)
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["checkpoint"]["claimName"] = CLAIM
    manifest["spec"]["stages"][0] |= EPOCHS
    space.create(manifest)
    space.until(lambda status: saved(status) >= 20, "a checkpoint is saved")
    for attempt, count in ((1, 1), (2, 2)):
        space.plane.kubectl("scale", "rbj/digits", f"--replicas={count}", f"--namespace={space.namespace}")
        status = space.until(partial(has_saved_in, attempt), "the next attempt saves a checkpoint")
        before = status["attempts"][-1]
        assert (before["reason"], before["ranks"]) == ("Resized", 3 - count)
        leader = f"digits-base-{attempt}-0"
        assert f"resumed from the checkpoint of step {before['checkpointStep']}" in log(space, leader)
        assert len(pods(space)) == count
    assert status["restarts"] == 0


def test_a_job_applied_again_while_its_pods_stop_has_its_new_settings(space: Space) -> None:
    """kubelet keeps a config map in memory while any pod on its node mounts one of that name."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["template"] = {"resources": {"requests": {"cpu": "800m"}}}
    crowd = {
        "requests": {"cpu": "1200m"}
    }  # there is room for one of two pods, so that the other one is deleted at once
    before = {**manifest["spec"], "template": {"resources": crowd}}
    space.create({**manifest, "spec": before})
    eventually(
        lambda: any(is_started(space, f"digits-base-0-{index}") for index in range(2)),
        bool,
        "one rank waits for the other one",
        space.patience_seconds,
    )
    space.delete(JOB, "digits")
    eventually(lambda: space.names_of(JOB), lambda found: not found, "the job is gone", space.patience_seconds)
    manifest["spec"]["stages"][0] |= {"epochs": 2}
    space.create(manifest)
    status = space.until_phase("Complete")
    assert (status["progress"]["epoch"], status["progress"]["step"]) == (2, 2 * STEPS_OF_AN_EPOCH)
    uid = space.get(JOB, "digits")["metadata"]["uid"]
    assert f"uid: {uid}" in space.get("configmaps", space.config_map())["data"]["config.yaml"]


def test_a_rank_that_the_kernel_kills_for_memory_is_told_so(space: Space) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["device"]["count"] = 1
    manifest["spec"]["template"] = {"resources": {"limits": {"memory": "300Mi"}}}
    manifest["spec"]["failurePolicy"] = {"maxRestarts": 0}
    space.create(manifest)
    status = space.until_phase("Failed")
    (record,) = status["attempts"]
    assert (record["reason"], record["exitCode"]) == ("OutOfMemory", 137)
    assert "template.resources.limits.memory is 300Mi; raise it" in record["message"]


def pods(space: Space) -> dict[str, tuple[str, int]]:
    """uid and container restarts of each pod."""
    found = {}
    for name in space.names_of("pods"):
        pod = space.get("pods", name)
        (container,) = pod["status"]["containerStatuses"]
        found[name] = (pod["metadata"]["uid"], container["restartCount"])
    return found


def first_resumed_step(space: Space, pod: str) -> datetime.datetime:
    """When rank 0 of the newest attempt finished its first step, by its log."""
    _, _, resumed = log(space, pod).rpartition("resumed from the checkpoint")
    line = re.search(r"^(\S+ \S+) \w+ .*step \d+/", resumed, re.MULTILINE)
    assert line, f"no step after the restart in the log of {pod}"
    return datetime.datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f")


def saved(status: dict[str, Any]) -> int:
    return int(status.get("progress", {}).get("checkpointStep") or 0)


def has_saved_in(attempt: int, status: dict[str, Any]) -> bool:
    """Whether this attempt has saved a checkpoint later than the one it began with."""
    return bool(status["attempt"] == attempt and saved(status) > status["attempts"][-1]["checkpointStep"])


def is_ready(space: Space, pod: str) -> bool:
    """The last result of kubelet's readiness probe."""
    (container,) = space.get("pods", pod)["status"]["containerStatuses"]
    return bool(container["ready"])


def is_started(space: Space, pod: str) -> bool:
    """Whether kubelet has started its container; before it is bound nothing is known of it."""
    found = space.get("pods", pod) if pod in space.names_of("pods") else {}
    return any("running" in container["state"] for container in found.get("status", {}).get("containerStatuses", ()))


def log(space: Space, pod: str) -> str:
    return space.plane.kubectl("logs", pod, f"--namespace={space.namespace}")


def times(space: Space, pod: str, applied: datetime.datetime) -> dict[str, float]:
    """Seconds from the job's creation to the times in rank 0's log."""
    marks = {"trainer runs": "metrics and progress on", "gang has met": "has joined its gang", "first step": "step 1/"}
    found = {}
    for what, words in marks.items():
        line = re.search(rf"^(\S+ \S+) \w+ .*{re.escape(words)}", log(space, pod), re.MULTILINE)
        assert line, f"no {words!r} in the log of {pod}"
        moment = datetime.datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f")
        found[what] = (moment - applied).total_seconds()
    return found


def tell(timeline: dict[str, float]) -> None:
    print("\nimages: " + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in images.sizes().items()))
    print("from apply: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in timeline.items()))
