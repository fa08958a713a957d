"""A job in the cluster of the kubeconfig: its status, its changes, its end."""

import contextlib
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from resnetboost.background import Background, result
from resnetboost_api.status import Status
from resnetboost_operator.errors import UserError

if TYPE_CHECKING:
    from resnetboost_operator.cli.status.job_view import JobView

Manifest = dict[str, Any]


class ClusterJob:
    """One job of a cluster. Once its uid is known, a later job of the same name is another one."""

    def __init__(self, name: str, namespace: str | None = None) -> None:
        """The job of that name; `namespace` is by default that of the kubeconfig's context."""
        self.name = name
        self.namespace = namespace
        self.uid: str | None = None

    @classmethod
    def apply(cls, manifest: Manifest, namespace: str | None, *, force: bool) -> "ClusterJob":
        """Apply a valid job (`Job.apply`)."""
        from resnetboost_operator.kubeclient import writer

        async def applied() -> Manifest:
            async with writer.connected() as cluster:
                place = namespace or manifest["metadata"].get("namespace") or cluster.namespace
                return await cluster.apply(manifest, place, force=force)

        metadata = result(applied)["metadata"]
        job = cls(metadata["name"], metadata["namespace"])
        job.uid = metadata["uid"]
        return job

    @property
    def status(self) -> Status:
        """The job's status now. Raises `UserError` if there is no such job, or no cluster."""
        with contextlib.closing(self.follow()) as statuses:
            return next(statuses)

    def follow(self, timeout: float | None = None) -> Generator[Status, None, None]:
        """Yield the status now and after each change, until the job is Complete or Failed.

        A lost connection is made again. Raises `UserError` if the job is missing or is deleted, and TimeoutError if it
        has not ended after `timeout` seconds; without one it waits for ever.
        """
        from resnetboost.following import changes

        until = None if timeout is None else time.monotonic() + timeout
        background: Background[JobView] = Background()
        with background.running(lambda: changes(self.name, self.namespace or "", self.uid, background.emit)):
            while (found := self._next(background, until)) is not None:
                self.namespace, self.uid = found.namespace, found.uid
                yield found.status

    def _next(self, background: "Background[JobView]", until: float | None) -> "JobView | None":
        try:
            return background.next(None if until is None else max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"job {self.name} has not ended in time") from None

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end and return the last status, whose phase is Complete or Failed. Raises as `follow` does."""
        *_, last = self.follow(timeout)
        return last

    def delete(self) -> None:
        """Delete the job and its pods; its checkpoints stay on their claim. Does nothing if it is gone already."""
        from resnetboost_operator.kubeclient import writer

        uid = self.uid or self._found_uid()

        async def deleted() -> bool:
            async with writer.connected() as cluster:
                await cluster.delete(self.namespace or cluster.namespace, self.name, uid)
            return True

        result(deleted)

    def _found_uid(self) -> str:
        _ = self.status
        if self.uid is None:
            raise UserError(f"there is no job {self.name}")
        return self.uid

    def __repr__(self) -> str:
        return f"<ClusterJob {'/'.join(filter(None, [self.namespace, self.name]))}>"
