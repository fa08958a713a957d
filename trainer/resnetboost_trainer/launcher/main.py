"""Entry point of a launcher: reads the environment, runs until the container should end, and leaves its last words."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec
import yaml

from resnetboost_api import names
from resnetboost_trainer.engine import early_signals
from resnetboost_trainer.launcher.processes import ENV_TEMPLATE


def main() -> None:
    """Be a launcher, or its template process. Returns in the ranks that the template process forks."""
    arguments = sys.argv[1:]
    if ENV_TEMPLATE not in os.environ:
        if arguments and not _is_config(arguments[0]):
            return  # a command, an option or a mistake: no rank
        if (settings := _settings()) is not None:
            os._exit(_launch(settings, arguments))
        return
    from resnetboost_trainer.launcher import template

    changed = template.main(arguments)
    os.environ.update(changed)
    if names.ENV_CONFIG in changed:
        sys.argv[1:] = []


def _is_config(argument: str) -> bool:
    return Path(argument).suffix in (".yaml", ".yml") or Path(argument).is_file()


class _Settings(msgspec.Struct, frozen=True):
    """The launcher's place in its gang. `leader`: host and port, for the others."""

    index: int
    size: int
    token: bytes
    leader: tuple[str, int] | None


def _settings() -> _Settings | None:
    """Read the environment. None if it cannot be used: this process is the rank itself then, and names a mistake."""
    try:
        index = int(os.environ.get(names.ENV_RANK) or os.environ.get(names.ENV_INDEX) or 0)
        size = int(os.environ.get(names.ENV_WORLD_SIZE) or 1)
        token = Path(os.environ[names.ENV_LAUNCHER_TOKEN]).read_bytes().strip()
        host, _, port = os.environ.get(names.ENV_LAUNCHER, "").rpartition(":")
        leader = (host, int(port)) if host else None
    except (OSError, ValueError) as error:
        print(f"no launcher, so this rank starts again in a new pod only: {error}", file=sys.stderr)
        return None
    return _Settings(index, size, token, leader) if token and 0 <= index < size else None


def _launch(settings: _Settings, arguments: list[str]) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    code = asyncio.run(_run(settings, arguments))
    sys.stderr.flush()
    return code


async def _run(settings: _Settings, arguments: list[str]) -> int:
    from resnetboost_trainer.launcher.launcher import Launcher
    from resnetboost_trainer.launcher.processes import RankProcesses

    ranks = RankProcesses(os.environ, arguments)
    launcher = Launcher(settings.index, settings.size, _attempt(arguments), ranks)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, launcher.stop)
    loop.add_signal_handler(signal.SIGINT, launcher.stop)
    loop.add_signal_handler(signal.SIGCHLD, ranks.reap)
    if settings.index == 0:
        launcher.lead(os.environ.get(names.ENV_BIND_ADDRESS, ""), names.PORT_LAUNCHER, settings.token)
    elif settings.leader is not None:
        launcher.follow(*settings.leader, settings.token)
    try:
        code = await launcher.run()
        _leave_message(launcher.message, code)
        return code
    finally:
        ranks.close()


def _attempt(arguments: list[str]) -> int:
    """The attempt of the container's configuration; 0 if that cannot be read, which the rank will say."""
    try:
        path = Path(arguments[0] if arguments else os.environ[names.ENV_CONFIG])
        return int(yaml.safe_load(path.read_text(encoding="utf-8")).get("attempt", 0))
    except (OSError, KeyError, ValueError, AttributeError, TypeError, yaml.YAMLError):
        return 0


def _leave_message(message: str, code: int) -> None:
    """Write the last rank's termination message where kubelet reads it: in place, not renamed into place."""
    path = os.environ.get(names.ENV_TERMINATION_LOG)
    if path and not message and code == early_signals.INTERRUPTED_EXIT_CODE:
        early_signals.write_message(path)  # no rank was there to do it
    if not path or not message:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(message)
    except OSError:
        pass
