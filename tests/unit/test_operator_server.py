"""The address that the operator logs it listens on."""

import asyncio
import re
import urllib.request

import pytest

from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.server import Server


def well() -> str:
    return ""


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", r"http://127\.0\.0\.1:\d+"), ("", r"http://0\.0\.0\.0:\d+")])
def test_the_reported_address_is_the_bound_one(host: str, told: str) -> None:
    async def play() -> str:
        server = Server(Metrics(), well, well, well)
        address = await server.start(host, 0)
        port = re.findall(r":(\d+)", address)[0]
        answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/healthz", None, 10)
        with answer:
            assert answer.read() == b"alive\n"
        await server.stop()
        return address

    address = asyncio.run(play())
    assert re.search(told, address)
    assert "localhost" not in address
