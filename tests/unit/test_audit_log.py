"""Requests read from an audit log that the API server is still writing."""

import json
from pathlib import Path

from beds.cluster import audit


def line(name: str) -> bytes:
    event = {
        "stage": "ResponseComplete",
        "verb": "create",
        "user": {"username": "operator"},
        "objectRef": {"resource": "pods", "name": name},
        "responseStatus": {"code": 201},
        "requestURI": "/api/v1/namespaces/a/pods",
    }
    return json.dumps(event).encode() + b"\n"


def test_it_reads_from_the_first_line_that_begins_later(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(line("first") + line("second") + line("third") + line("fourth")[:30])
    one = len(line("first"))
    for since, names in ((0, ["first", "second", "third"]), (one, ["second", "third"]), (one + 5, ["third"])):
        assert [request.name for request in audit.read(log, since=since)] == names, since
