"""Hundreds of random faults within an hour of virtual time: launchers that lie, hang, die, answer late or twice.

Whatever happens: attempt numbers grow, no rank starts twice for an attempt nor goes back to an earlier one, no two
generations of a rank have pods at the same time (`Cluster.step` checks that), and the job ends once the faults do.
"""

import contextlib
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from resnetboost_api.launcher import GangReport, RankEnd
from resnetboost_operator import status
from resnetboost_operator.observed.nodes import NodeView
from support.playedlaunchers import Launchers
from support.simulation import Cluster, Crash, job

FAULTS = 600
SECONDS = 3600.0
RANKS = 3
CODES = (14, 16, 134, 137, 139, 143)


class World:
    """A cluster, its launchers and a clock; each fault is one method."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        policy = {"maxRestarts": 1_000_000, "backoffSeconds": 1, "maxBackoffSeconds": 8, "hangTimeoutSeconds": 60}
        self.cluster = Cluster(
            job(
                device={"type": "CPU", "count": RANKS},
                failurePolicy=policy,
                runPolicy={"startupDeadlineSeconds": 60},
            )
        )
        self.step = 0
        self.gangs: list[Launchers] = []
        self.attempt = 0
        self.in_place = self.abandoned = 0

    # Faults

    def end_rank(self) -> None:
        self.launchers.end(self.index, self.chance.choice(CODES), self.cluster.now)

    def end_container(self) -> None:
        index = self.index
        if self._exists(index):
            self.launchers.die(index)
            self.cluster.exit(index, self.chance.choice(CODES))

    def lose_pod(self) -> None:
        index = self.index
        if self._exists(index):
            self.launchers.die(index)
            self.cluster.vanish(index)

    def cut_launcher(self) -> None:
        self.launchers.connected.discard(self.index)

    def hang_launcher(self) -> None:
        self.launchers.deaf.add(self.index)

    def cut_link(self) -> None:
        self.cluster.reached = False

    def lose_node(self) -> None:
        name = f"node-{self.index}"
        self.cluster.nodes[name] = NodeView(name, ready=False, silent_since=self.cluster.now)

    def suspend(self) -> None:
        self._set_suspend(True)

    def crash(self) -> None:
        """The operator dies before or after one of its writes or commands; another one begins."""
        with contextlib.suppress(Crash):
            self.cluster.step(crash_after=self.chance.randrange(4))
        self.cluster.since = self.cluster.now

    def repeat_command(self) -> None:
        for command in self.launchers.commands[-2:]:
            self.launchers.command(command, self.cluster.now)

    def lie(self) -> None:
        attempt = max(0, self.cluster.status.attempt + self.chance.choice((-1, 0, 0, 0, 1, 1000)))
        ends = tuple(
            RankEnd(self.chance.randrange(5), attempt, self.chance.choice((0, 14, 137, 255)), "no", 1e300)
            for _ in range(self.chance.randrange(3))
        )
        self.launchers.lie = GangReport(attempt, self.chance.randrange(5), self.chance.randrange(5), ends)

    # The rest of the world

    @property
    def launchers(self) -> Launchers:
        assert self.cluster.launchers is not None
        return self.cluster.launchers

    @property
    def index(self) -> int:
        return self.chance.randrange(RANKS)

    def mend(self) -> None:
        """Most faults pass."""
        self.launchers.lie = None
        self.launchers.deaf.clear()
        self.cluster.reached = True
        self.cluster.nodes.clear()
        self._set_suspend(False)

    def live(self, seconds: float) -> None:
        """Let time pass for launchers, kubelet, ranks and operator."""
        cluster = self.cluster
        cluster.now += seconds
        gang = cluster.gang()
        if len(gang) == RANKS and all(pod["status"]["phase"] == "Pending" for pod in gang):
            self.gangs.append(cluster.launch())
        if cluster.launchers is not None:
            cluster.launchers.tick(cluster.now)
            self._train()
            cluster.leave()
        cluster.finish_deletions()
        cluster.step()
        self._check()

    def _train(self) -> None:
        trains = (
            all(rank.runs for rank in self.launchers.ranks) and self.launchers.attempt == self.cluster.status.attempt
        )
        if trains and len(self.cluster.gang()) == RANKS:
            self.step += 1
            self.cluster.train_to(self.step, checkpoint_step=self.step)

    def _check(self) -> None:
        found = self.cluster.status
        assert found.attempt >= self.attempt, "attempt numbers grow"
        assert status.pods_attempt(found) <= found.attempt
        assert found.phase != "Failed"
        recorded = [record.attempt for record in found.attempts]
        assert recorded == sorted(set(recorded)), "an attempt is recorded once"
        self.attempt = found.attempt
        self.in_place += status.is_in_place(found)

    def check_starts(self) -> None:
        """Over all gangs, each rank started at most once for an attempt, in their order."""
        for index in range(RANKS):
            begun = [attempt for gang in self.gangs for rank, attempt in gang.starts if rank == index]
            assert begun == sorted(set(begun))

    def _exists(self, index: int) -> bool:
        pods = [pod for pod in self.cluster.gang() if pod["metadata"]["labels"]["resnetboost.io/index"] == str(index)]
        return bool(pods) and pods[0]["status"]["phase"] == "Running"

    def _set_suspend(self, value: bool) -> None:
        policy = replace(self.cluster.job.spec.run_policy, suspend=value)
        self.cluster.job = replace(self.cluster.job, spec=replace(self.cluster.job.spec, run_policy=policy))


def begun(seed: int) -> World:
    world = World(seed)
    while world.cluster.launchers is None:
        world.live(1.0)
    return world


def faults(world: World) -> list[Callable[[], None]]:
    often = [world.end_rank] * 6
    return [
        *often,
        world.end_container,
        world.lose_pod,
        world.cut_launcher,
        world.hang_launcher,
        world.cut_link,
        world.lose_node,
        world.suspend,
        world.crash,
        world.crash,
        world.repeat_command,
        world.lie,
    ]


@pytest.mark.parametrize("seed", range(4))
def test_an_hour_of_faults(seed: int) -> None:
    world = begun(seed)
    kinds = faults(world)
    for _ in range(FAULTS):
        world.chance.choice(kinds)()
        for _ in range(world.chance.randrange(4)):
            world.live(world.chance.uniform(0.0, 2 * SECONDS / FAULTS / 1.5))
        if world.chance.random() < 0.5:
            world.mend()
    assert world.in_place > FAULTS / 20, "most of the hour must not pass with new pods"
    world.mend()
    for _ in range(200):
        world.live(1.0)
        if world.launchers.attempt == world.cluster.status.attempt and world.cluster.status.phase == "Running":
            break
    for index in range(RANKS):
        world.launchers.end(index, 0, world.cluster.now)
    for _ in range(5):
        world.live(1.0)
    assert world.cluster.status.phase == "Complete"
    assert world.cluster.now > 1_700_000_000 + 0.8 * SECONDS
    world.check_starts()
