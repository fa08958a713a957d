"""The launchers of one gang, played in virtual time: they obey as real ones do, or fail as the test says."""

from dataclasses import dataclass, field

from resnetboost_api.launcher import GangReport, RankEnd, StartAttempt, gang_report

UNANSWERED_SECONDS = 10.0


@dataclass
class Rank:
    """The newest rank of one launcher: it waits until `starts_at`, then runs, then may have ended."""

    starts_at: float | None = None
    runs: bool = True
    code: int | None = None
    ended_at: float = 0.0
    message: str = ""


@dataclass
class Launchers:
    """`attempt` is the newest that the leader heard of, `connected` who is connected to it, `deaf` who never obeys.

    `starts` lists every start of a rank as (index, attempt): no rank may have two at a time, nor go back.
    """

    count: int
    attempt: int
    ranks: list[Rank] = field(default_factory=list)
    connected: set[int] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)
    lie: GangReport | None = None
    commands: list[StartAttempt] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [Rank() for _ in range(self.count)]
        self.connected = set(range(self.count))
        self.starts = [(index, self.attempt) for index in range(self.count)]

    def report(self) -> GangReport:
        if self.lie is not None:
            return self.lie
        ended = [
            RankEnd(index, self.attempt, rank.code, rank.message, rank.ended_at)
            for index, rank in enumerate(self.ranks)
            if rank.code is not None
        ]
        running = sum(rank.runs for rank in self.ranks)
        return gang_report(self.attempt, running, len(self.connected), ended)

    def command(self, command: StartAttempt, now: float) -> None:
        """Obey a command, as often as it comes: end every rank, and start it again after the back-off."""
        assert command.config["attempt"] == command.attempt
        self.commands.append(command)
        if command.attempt <= self.attempt:
            return
        self.attempt = command.attempt
        for index in self.connected - self.deaf:
            self.ranks[index] = Rank(now + command.delay_seconds, runs=False)
        for index in self.deaf | (set(range(self.count)) - self.connected):
            self.ranks[index].runs = False  # it is at an earlier attempt, which the leader does not count
        self.tick(now)

    def tick(self, now: float) -> None:
        """Start the ranks whose time has come."""
        for index, rank in enumerate(self.ranks):
            if rank.starts_at is not None and rank.starts_at <= now:
                rank.starts_at, rank.runs = None, True
                self.starts.append((index, self.attempt))

    def die(self, index: int) -> None:
        """The launcher, and with it its rank, ends."""
        self.ranks[index] = Rank(None, runs=False)
        self.connected.discard(index)

    def end(self, index: int, code: int, now: float, message: str = "") -> None:
        """The rank ends; its launcher reports that and waits for a command."""
        if self.ranks[index].runs:
            self.ranks[index] = Rank(None, False, code, now, message)

    def leaving(self, now: float) -> list[tuple[int, int]]:
        """(index, exit code) of launchers that waited for a command in vain, or whose rank succeeded."""
        late = [
            (index, rank.code)
            for index, rank in enumerate(self.ranks)
            if rank.code is not None and (rank.code == 0 or now >= rank.ended_at + UNANSWERED_SECONDS)
        ]
        for index, _ in late:
            self.connected.discard(index)
        return late
