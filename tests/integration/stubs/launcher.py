"""Stub launcher around the stub trainer, as small as the protocol allows, for `python -m resnetboost_trainer`."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import yaml

from resnetboost_api import names
from resnetboost_api.connection import Broken, Connection, connect
from resnetboost_api.launcher import (
    Alive,
    GangReport,
    HelloLauncher,
    HelloOperator,
    RankEnd,
    RankReport,
    StartAttempt,
    gang_report,
)

INDEX = int(os.environ[names.ENV_RANK])
COUNT = int(os.environ[names.ENV_WORLD_SIZE])
TOKEN = Path(os.environ[names.ENV_LAUNCHER_TOKEN]).read_bytes()


class Launcher:
    """One launcher. `reports` are the leader's: what it knows of every rank."""

    def __init__(self) -> None:
        self.attempt = yaml.safe_load(Path(os.environ[names.ENV_CONFIG]).read_text())["attempt"]
        self.config = os.environ[names.ENV_CONFIG]
        self.child: asyncio.subprocess.Process | None = None
        self.own = RankReport(INDEX, self.attempt)
        self.reports: dict[int, RankReport] = {}
        self.peers: dict[Connection, object] = {}
        self.leader: Connection | None = None

    async def run(self) -> None:
        if INDEX == 0:
            await asyncio.start_server(self.lead, os.environ[names.ENV_BIND_ADDRESS], names.PORT_LAUNCHER)
        else:
            self.following = asyncio.create_task(self.follow())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        await self.start(self.attempt)
        await asyncio.Event().wait()

    def stop(self) -> None:
        if self.child is not None:
            self.child.terminate()

    async def start(self, attempt: int) -> None:
        environment = {**os.environ, names.ENV_CONFIG: self.config}
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "resnetboost_trainer.rank", env=environment
        )
        await self.say(RankReport(INDEX, attempt, running=True))
        self.waiting = asyncio.create_task(self.await_end(self.child, attempt))

    async def await_end(self, child: asyncio.subprocess.Process, attempt: int) -> None:
        code = await child.wait()
        code = code if code >= 0 else 128 - code
        if attempt != self.attempt:
            return
        if code == 0:
            os._exit(0)
        message = Path(os.environ[names.ENV_TERMINATION_LOG]).read_text()
        await self.say(RankReport(INDEX, attempt, end=RankEnd(INDEX, attempt, code, message, time.time())))
        await asyncio.sleep(10)
        if attempt == self.attempt:
            os._exit(code)

    async def obey(self, command: StartAttempt) -> None:
        if command.attempt <= self.attempt:
            return
        self.attempt = command.attempt
        assert self.child is not None
        if self.child.returncode is None:
            self.child.kill()
        await self.child.wait()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            yaml.safe_dump(command.config, file)
        self.config = file.name
        await self.say(RankReport(INDEX, self.attempt))
        await asyncio.sleep(command.delay_seconds)
        await self.start(command.attempt)

    async def say(self, report: RankReport) -> None:
        self.own = report
        if INDEX == 0:
            await self.hear(report)
        elif self.leader is not None:
            await self.leader.send(report)

    # The leader's part

    async def hear(self, report: RankReport) -> None:
        self.reports[report.index] = report
        for connection, hello in self.peers.items():
            if isinstance(hello, HelloOperator):
                await connection.send(self.gang())

    def gang(self) -> GangReport:
        current = [report for report in self.reports.values() if report.attempt == self.attempt]
        ends = [report.end for report in current if report.end is not None]
        connected = 1 + sum(isinstance(hello, HelloLauncher) for hello in self.peers.values())
        return gang_report(self.attempt, sum(report.running for report in current), connected, ends)

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        alive = asyncio.create_task(self.live(connection))
        try:
            await connection.greet(TOKEN, server=True)
            self.peers[connection] = hello = await connection.receive()
            if isinstance(hello, HelloOperator):
                await connection.send(self.gang())
            while True:
                message = await connection.receive()
                if isinstance(message, RankReport):
                    await self.hear(message)
                elif isinstance(message, StartAttempt):
                    for peer, greeting in self.peers.items():
                        if isinstance(greeting, HelloLauncher):
                            await peer.send(message)
                    self.obeying = asyncio.create_task(self.obey(message))
        except Broken:
            self.peers.pop(connection, None)
            alive.cancel()

    async def live(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(2)
            await connection.send(Alive())

    # The others' part

    async def follow(self) -> None:
        host, _, port = os.environ[names.ENV_LAUNCHER].rpartition(":")
        while True:
            try:
                self.leader = await connect(host, int(port), TOKEN, HelloLauncher(INDEX))
                break
            except Broken:
                await asyncio.sleep(0.1)
        await self.leader.send(self.own)
        self.living = asyncio.create_task(self.live(self.leader))
        while isinstance(message := await self.leader.receive(), msgspec.Struct):
            if isinstance(message, StartAttempt):
                self.obeying = asyncio.create_task(self.obey(message))


asyncio.run(Launcher().run())
