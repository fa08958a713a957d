"""Reads the API server's audit log: requests, their users and outcomes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class Request(NamedTuple):
    """One request; `resource` is named as in RBAC (pods/status), `code` is the HTTP status."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    path: str


def read(log: Path, user: str = "", since: int = 0) -> Iterator[Request]:
    """Requests answered so far, of one user or of all, each once: a watch when it starts, others when they end.

    since: the log's size, in bytes, when the first of them could come.
    """
    with log.open("rb") as lines:
        if since:
            lines.seek(since - 1)
            lines.readline()  # the end of a line that was being written
        for line in lines:
            if not line.endswith(b"\n"):  # still being written
                break
            event = json.loads(line)
            if is_first_answer(event) and user in ("", event["user"]["username"]):
                yield request(event)


def is_first_answer(event: dict[str, Any]) -> bool:
    """Whether this is the request's first event with an answer; a granted watch has one at its start and its end."""
    granted_watch = event["verb"] == "watch" and event["responseStatus"]["code"] < 400
    return bool(event["stage"] == ("ResponseStarted" if granted_watch else "ResponseComplete"))


def request(event: dict[str, Any]) -> Request:
    """Convert an audit event to a request."""
    target = event.get("objectRef", {})
    resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event["responseStatus"]["code"],
        path=event["requestURI"],
    )
