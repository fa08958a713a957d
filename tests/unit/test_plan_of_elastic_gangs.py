"""Elastic gangs in the plan: fewer devices where there is no room, more when there is, as many as a user asks for."""

import itertools
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator import status as statuses
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.probe import PROBE_SECONDS
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.validation import schema
from support.scarcedevices import WHOLE, Scarce, elastic
from support.simulation import Crash, job

AFTER, BACKOFF = 300, 1800  # the defaults


def config(found: Scarce) -> dict[str, Any]:
    """What the trainers of the newest attempt are told."""
    maps = found.cluster.config_maps
    name = names.config_map("digits", found.cluster.job.uid, "base", found.cluster.status.attempt)
    return dict(yaml.safe_load(maps[name]["data"][names.CONFIG_KEY]))


def world_sizes(found: Scarce) -> set[str]:
    containers = [pod["spec"]["containers"][0] for pod in found.cluster.gang()]
    return {one["value"] for container in containers for one in container["env"] if one["name"] == names.ENV_WORLD_SIZE}


def shrunk(room: int = 2, **device: Any) -> Scarce:
    """A gang that trains on fewer devices than it should."""
    found = elastic(room, **device)
    found.live(AFTER + 60)
    return found


class TestTooLittleRoom:
    def test_after_a_while_the_gang_begins_with_as_many_ranks_as_found_room(self) -> None:
        found = elastic(room=3)
        found.live(AFTER - 20)
        assert found.ranks() == WHOLE
        found.live(60)
        assert found.ranks() == 2, "3 do not divide 4"
        assert found.cluster.status.phase == "Running"
        assert world_sizes(found) == {"2"}
        assert config(found)["virtualRanks"] == WHOLE
        assert (found.cluster.status.restarts, found.reasons()) == (0, ["Resized"])
        assert "Resized" in found.cluster.events

    def test_a_gang_that_fits_is_told_nothing_of_virtual_ranks(self) -> None:
        found = elastic(room=WHOLE)
        found.live(30)
        assert "virtualRanks" not in config(found)
        assert found.cluster.status.placeable_devices is None

    def test_without_min_count_it_waits(self) -> None:
        found = elastic(room=2, minCount=None)
        found.live(1000)
        assert (found.ranks(), found.reasons()) == (WHOLE, [])

    def test_it_never_has_fewer_than_min_count(self) -> None:
        found = elastic(room=1, minCount=2)
        found.live(4 * AFTER)
        assert found.ranks() == 2
        assert found.cluster.status.phase == "Starting"
        assert min(size for size in found.sizes() if size) == 2

    def test_a_gang_that_is_bound_as_a_whole_tries_one_size_after_another(self) -> None:
        found = elastic(room=1)
        found.together = True
        found.live(3 * AFTER)
        assert found.sizes() == [4, 2, 1]
        assert found.cluster.status.phase == "Running"

    def test_nodes_with_devices_for_several_ranks_are_used_whole(self) -> None:
        found = elastic(room=3, perNode=2)
        found.live(AFTER + 60)
        assert found.ranks() == 2
        found = elastic(room=1, perNode=2)
        found.live(4 * AFTER)
        assert found.ranks() == 2

    def test_a_lost_device_that_nothing_replaces_leaves_the_others_training(self) -> None:
        found = elastic(room=WHOLE)
        found.live(60)
        step = found.cluster.progress.step if found.cluster.progress else 0
        found.lose(3)
        found.live(AFTER + 60)
        assert (found.ranks(), found.cluster.status.phase) == (2, "Running")
        assert found.reasons() == ["Disrupted", "Resized"]
        assert found.cluster.status.restarts_count_towards_max == 0
        assert found.cluster.progress is not None and found.cluster.progress.step > step

    def test_a_failure_afterwards_restarts_the_smaller_gang_at_once(self) -> None:
        found = shrunk()
        found.cluster.exit(1, 1)
        found.live(120)
        assert (found.ranks(), found.cluster.status.phase) == (2, "Running")

    def test_a_stage_of_fewer_devices_is_divided_by_its_own_number(self) -> None:
        base = {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8}
        stages = [base | {"deviceCount": 3}, base | {"name": "fine"}]
        found = elastic(room=2, spec={"stages": stages})
        found.live(2 * AFTER)
        assert found.sizes() == [3, 1]


class TestMoreRoom:
    def test_it_grows_when_there_is_room_for_all(self) -> None:
        found = shrunk()
        found.room = WHOLE
        found.live(BACKOFF + 60)
        assert (found.ranks(), found.cluster.status.phase) == (WHOLE, "Running")
        assert "virtualRanks" not in config(found)
        assert found.cluster.status.placeable_devices is None
        assert found.sizes() == [4, 2, 4]
        assert not found.cluster.probes()

    def test_it_grows_as_far_as_there_is_room(self) -> None:
        found = shrunk(room=1)
        assert found.ranks() == 1
        found.room = 3
        found.live(BACKOFF + 60)
        assert (found.ranks(), found.cluster.status.placeable_devices) == (2, 2)

    def test_the_gang_is_left_alone_until_there_is_room(self) -> None:
        found = shrunk()
        found.live(3 * BACKOFF)
        assert found.sizes() == [4, 2]
        probes = found.cluster.probes()
        assert [pod["metadata"]["labels"][names.LABEL_INDEX] for pod in probes] == ["2", "3"]
        assert all(not pod["spec"].get("nodeName") for pod in probes)

    def test_it_does_not_look_for_room_before_the_backoff(self) -> None:
        found = shrunk()
        found.room = WHOLE
        found.live(BACKOFF - 100)
        assert not found.cluster.probes()
        assert found.ranks() == 2

    def test_one_free_device_is_not_counted_for_two(self) -> None:
        found = shrunk()
        found.room = 3
        found.live(3 * BACKOFF)
        assert found.sizes() == [4, 2]

    def test_probes_hold_a_free_device_for_a_minute_in_each_backoff(self) -> None:
        found, held = shrunk(), 0
        found.room = 3
        begin = found.cluster.now
        while found.cluster.now < begin + 5 * BACKOFF:
            found.live(10)
            held += any(pod["status"]["phase"] == "Running" for pod in found.cluster.probes())
        assert 10 < held < 5 * 2 * 7, "two probes for a minute in each backoff"

    def test_a_probe_that_cannot_start_gives_its_device_back(self) -> None:
        found = shrunk()
        found.room = 3
        found.live(BACKOFF)
        spec = found.cluster.probes()[0]["spec"]
        assert PROBE_SECONDS < spec["activeDeadlineSeconds"] <= 2 * PROBE_SECONDS, "kubelet ends it"
        bound = next(pod for pod in found.cluster.probes() if pod["spec"].get("nodeName"))
        bound["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
        bound["status"].pop("containerStatuses", None)
        found.cluster.settle()
        assert [pod["metadata"]["name"] for pod in found.cluster.probes()] == [bound["metadata"]["name"]]
        found.live(BACKOFF - 300)
        assert len(found.cluster.probes()) == 1, "the next round has its time"

    def test_probes_have_no_priority_and_no_group_and_no_configuration(self) -> None:
        found = shrunk(room=2)
        found.cluster.job = replace(
            found.cluster.job,
            spec=replace(
                found.cluster.job.spec,
                scheduling=replace(found.cluster.job.spec.scheduling, priority_class_name="high"),
            ),
        )
        found.live(BACKOFF)
        spec = found.cluster.probes()[0]["spec"]
        assert "priorityClassName" not in spec
        assert "schedulingGroup" not in spec
        assert "volumes" not in spec
        assert spec["containers"][0].keys() <= {
            *("name", "image", "imagePullPolicy", "resources", "securityContext", "command")
        }

    def test_probes_go_with_the_gang(self) -> None:
        for suspends in (True, False):
            found = shrunk()
            found.live(BACKOFF + 60)
            assert found.cluster.probes()
            if suspends:
                found.suspend(True)
            else:
                found.cluster.exit(0, 10)
            found.live(60)
            assert not found.cluster.probes()

    def test_without_min_count_any_more_it_asks_for_all_again(self) -> None:
        found = shrunk()
        device = replace(found.cluster.job.spec.device, min_count=None)
        found.cluster.job = replace(found.cluster.job, spec=replace(found.cluster.job.spec, device=device))
        found.live(30)
        assert found.ranks() == WHOLE


class TestScale:
    def test_a_running_gang_is_resized_at_once_and_nothing_is_counted(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.live(60)
        found.scale(2)
        found.live(30)
        assert (found.sizes(), found.reasons()) == ([4, 2], ["Resized"])
        found.scale(4)
        found.live(30)
        assert (found.sizes(), found.reasons()) == ([4, 2, 4], ["Resized", "Resized"])
        status = found.cluster.status
        assert (status.restarts, status.restarts_count_towards_max) == (0, 0)
        assert (status.phase, status.ranks.desired, status.virtual_ranks) == ("Running", 4, 4)

    @pytest.mark.parametrize(("asked", "ranks"), [(3, 2), (1, 1), (8, 4), (4, 4)])
    def test_the_number_is_the_largest_that_divides(self, asked: int, ranks: int) -> None:
        found = elastic(room=8, minCount=None)
        found.live(60)
        found.scale(asked)
        found.live(60)
        assert (found.ranks(), found.cluster.status.phase) == (ranks, "Running")

    @pytest.mark.parametrize("stage", [{"syncBatchNorm": True}, {"algorithm": "Adasum"}])
    def test_a_stage_that_needs_all_its_ranks_at_once_keeps_them(self, stage: dict[str, Any]) -> None:
        """An older CRD lets them be scaled."""
        base = {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8}
        found = elastic(room=WHOLE, minCount=None, spec={"stages": [base | stage]})
        found.live(60)
        found.scale(2)
        found.live(60)
        assert (found.sizes(), found.cluster.status.phase) == ([WHOLE], "Running")

    def test_the_event_says_what_was_asked_for_and_what_it_gets(self) -> None:
        found = elastic(room=8, minCount=None)
        found.live(60)
        found.scale(3)
        events = []
        for _ in range(5):
            events += [event.message for event in found.cluster.plan().events]
            found.turn()
        assert "from 4 devices to 2: device.count is 3, and 2 is the largest number up to it that divides 4" in events

    def test_a_suspended_job_is_resumed_with_the_new_number(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.live(60)
        found.suspend(True)
        found.live(30)
        found.scale(2)
        found.live(30)
        assert not found.cluster.pods
        found.suspend(False)
        found.live(30)
        assert (found.sizes(), found.cluster.status.phase) == ([4, 2], "Running")
        assert config(found)["virtualRanks"] == WHOLE

    def test_a_gang_that_never_was_whole_gets_another_number_and_new_objects(self) -> None:
        """A config map of an attempt is immutable: the simulation refuses another one of its name."""
        found = elastic(room=1, minCount=None)
        found.live(30)
        assert found.cluster.status.phase == "Starting"
        found.suspend(True)
        found.live(30)
        found.scale(1)
        found.suspend(False)
        found.live(30)
        assert (found.ranks(), found.cluster.status.phase) == (1, "Running")

    def test_so_does_one_whose_pods_were_never_created(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.cluster.step()
        found.cluster.pods.clear()  # a quota refuses them
        found.suspend(True)
        found.cluster.settle()
        assert found.cluster.status.attempts == ()
        found.scale(2)
        found.suspend(False)
        found.live(30)
        assert (found.ranks(), found.cluster.status.phase) == (2, "Running")
        assert config(found)["virtualRanks"] == WHOLE

    def test_a_stage_that_is_nearly_done_is_not_begun_again(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.live(60)
        found.cluster.exit(3, 0)
        found.cluster.settle()
        found.scale(2)
        found.cluster.settle()
        for index in range(3):
            found.cluster.exit(index, 0)
        found.cluster.settle()
        assert (found.cluster.status.phase, found.reasons()) == ("Complete", [])

    def test_during_the_backoff_of_a_restart(self) -> None:
        found = elastic(room=WHOLE, minCount=None, spec={"failurePolicy": {"backoffSeconds": 100}})
        found.live(60)
        found.cluster.exit(1, 1)
        found.live(20)
        assert found.cluster.status.phase == "Restarting"
        found.scale(2)
        found.live(150)
        assert (found.ranks(), found.cluster.status.phase) == (2, "Running")
        assert found.reasons()[0] == "InternalError"

    def test_a_finished_job_stays_as_it_is(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.live(60)
        for index in range(WHOLE):
            found.cluster.exit(index, 0)
        found.cluster.settle()
        before = found.cluster.status
        assert before.phase == "Complete"
        found.scale(2)
        found.live(30)
        assert found.cluster.status == before

    def test_the_training_stays_defined_by_the_first_number(self) -> None:
        manifest = schema.defaulted(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": "digits"},
                "spec": {
                    "device": {"count": 2},
                    "model": {"name": "resnet20", "numClasses": 10},
                    "dataset": {"name": "digits"},
                    "stages": [{"name": "base", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8}],
                },
                "status": {"virtualRanks": 4},
            }
        )
        found = parse_job(manifest)
        assert (found.spec.stages[0].device_count, found.most_devices) == (4, 2)

    def test_an_attempt_of_an_earlier_operator_keeps_its_ranks(self) -> None:
        found = elastic(room=WHOLE, minCount=None)
        found.live(60)
        found.cluster.status = replace(found.cluster.status, device_count=None, virtual_ranks=None)
        found.live(30)
        assert (found.sizes(), found.cluster.status.virtual_ranks) == ([4], 4)


@pytest.mark.parametrize("crashes", list(itertools.product(range(4), range(3))))
def test_an_operator_killed_between_writes_changes_nothing(crashes: tuple[int, int]) -> None:
    """It shrinks, is scaled and grows; once undisturbed, once with a crash every few passes."""
    every, after = crashes
    ends = []
    for disturbed in (False, True):
        found = elastic(room=2)
        passes = itertools.count()

        def act(seconds: float, found: Scarce = found, passes: Any = passes, disturbed: bool = disturbed) -> None:
            end = found.cluster.now + seconds
            while found.cluster.now < end:
                crash = after if disturbed and next(passes) % (every + 2) == 0 else None
                try:
                    found.turn(crash)
                except Crash:
                    found.turn()
                found.cluster.now += 5

        act(AFTER + 60)
        found.scale(1)
        act(60)
        found.scale(4)
        found.room = WHOLE
        act(BACKOFF + 120)
        ends.append((found.sizes(), found.reasons(), found.cluster.status.phase, sorted(found.cluster.pods)))
    assert ends[0] == ends[1]
    assert ends[0][0][-1] == WHOLE


def test_numbers_of_attempts_are_never_used_twice() -> None:
    found = elastic(room=WHOLE, minCount=None)
    for count in (2, 4, 1, 4):
        found.live(40)
        found.scale(count)
    found.live(40)
    attempts = [record.attempt for record in found.cluster.status.attempts]
    assert attempts == sorted(set(attempts))
    assert found.sizes() == [4, 2, 4, 1, 4]


def test_its_pods_can_be_selected_for_an_autoscaler() -> None:
    found = elastic(room=WHOLE)
    found.live(30)
    wanted = dict(part.split("=") for part in found.cluster.status.selector.split(","))
    assert all(wanted.items() <= pod["metadata"]["labels"].items() for pod in found.cluster.gang())
    assert statuses.to_dict(found.cluster.status)["ranks"]["desired"] == WHOLE
    assert job().defined_devices == 2


class TestQueue:
    """Kueue admits as many ranks as there is quota for, and has the rest back."""

    def test_the_workload_says_how_few_will_do(self) -> None:
        wanted = pod_set(queued(minCount=2))
        assert (wanted["count"], wanted["minCount"]) == (WHOLE, 2)
        assert "minCount" not in pod_set(queued(minCount=None))

    def test_kueue_takes_no_min_count_with_a_topology(self) -> None:
        rack = {"schedulingConstraints": {"topology": [{"key": "example.com/rack"}]}}
        assert "minCount" not in pod_set(queued(spec={"scheduling": rack}))

    @pytest.mark.parametrize(("admitted", "ranks"), [(4, 4), (3, 2), (2, 2), (1, 1)])
    def test_it_runs_on_what_divides_of_what_is_admitted(self, admitted: int, ranks: int) -> None:
        found = queued()
        found.cluster.kueue.admit(count=admitted)
        found.live(60)
        assert (found.ranks(), found.cluster.status.phase) == (ranks, "Running")
        view = found.cluster.kueue.view()
        assert view is not None
        assert view.reclaimed == WHOLE - ranks
        assert found.cluster.status.placeable_devices is None

    def test_queued_again_it_asks_for_all(self) -> None:
        found = queued()
        found.cluster.kueue.admit(count=2)
        found.live(60)
        found.cluster.kueue.evict()
        found.live(60)
        assert not found.cluster.pods
        found.cluster.kueue.admit()
        found.live(60)
        assert found.ranks() == WHOLE

    @pytest.mark.parametrize("asked", [WHOLE, 2])
    def test_scaled_up_it_is_queued_again_for_more(self, asked: int) -> None:
        """Its Workload was for all, of which the job gave some back, or for as few as it ran on."""
        found = queued()
        found.scale(2)
        found.suspend(asked == 2)
        found.live(30)
        found.suspend(False)
        found.live(30)
        assert pod_set(found)["count"] == asked
        found.cluster.kueue.admit()
        found.live(60)
        assert found.ranks() == 2
        found.scale(4)
        found.live(60)
        assert found.cluster.status.phase == "Queued"
        found.cluster.kueue.admit()
        found.live(60)
        assert found.sizes()[-1] == 4


def queued(**wanted: Any) -> Scarce:
    """An elastic job in a queue, with its Workload written."""
    found = elastic(room=8, **wanted)
    found.cluster.job = replace(found.cluster.job, queue="team-a")
    found.cluster.capabilities = Capabilities(kueue=True, kueue_enabled=True)
    found.cluster.flavors = {"spot": Flavor({})}
    found.live(30)
    return found


def pod_set(found: Scarce) -> dict[str, Any]:
    assert found.cluster.kueue.workload is not None
    (only,) = found.cluster.kueue.workload["spec"]["podSets"]
    return dict(only)
