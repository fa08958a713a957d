"""Distributes tests over the workers of `make test` (pytest-xdist); without workers it only changes their order."""

import gc
from collections.abc import Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from beds.cluster import build
from beds.cluster.ahead import Ahead

# Starting a control plane takes a minute and a gigabyte, so one worker runs all tests that need one.
_OF_THE_CONTROL_PLANE = tuple(
    f"tests/integration/test_{name}"
    for name in (
        "api_server_verdicts",
        "control_plane",
        "doctor",
        "no_gang_scheduler",
        "operator_",
        "python_cluster",
        "status_of_jobs",
        "sweep_on_a_cluster",
    )
)
_OF_THE_GANG_CLUSTER = "tests/integration/test_gang_"
_BY_FILE = ("contract", "golden", "integration", "unit")
# Programs that a group's tests need, which may take minutes to build.
_PROGRAMS: dict[str, Sequence[str]] = {
    "control plane": (*build.CONTROL_PLANE, "kwok"),
    "chart": (*build.CONTROL_PLANE, "kwok", *build.HELM),
    "kubelet": (*build.CONTROL_PLANE, *build.HELM, *build.NODE, *build.MONITORING),
    "gang cluster": (*build.GANG_CONTROL_PLANE, "kwok"),
    "tests/integration/test_kueue.py": (*build.CONTROL_PLANE, *build.KUEUE),
}


def group(nodeid: str) -> str:
    """Tests that one worker runs together: one file, to set up shared fixtures once, or several that share more.

    pytest-xdist 3.8 has groups, too, but they do not work with pytest 9.2, which forbids changing a test's id.
    """
    path = nodeid.partition("::")[0]
    if path.startswith(_OF_THE_CONTROL_PLANE):
        return "control plane"
    if path.startswith(_OF_THE_GANG_CLUSTER):
        return "gang cluster"
    folder = path.split("/")[1]
    return path if folder in _BY_FILE else folder


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each idle worker the next group; groups whose programs are not built yet wait until the others have run."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._ahead: Ahead | None = None

    def schedule(self) -> None:
        """Hand out the first groups. Called again whenever a worker joins."""
        if self._ahead is None:
            groups = {group(nodeid) for collected in self.registered_collections.values() for nodeid in collected}
            needed = [name for known, names in _PROGRAMS.items() if known in groups for name in names]
            self._ahead = Ahead(dict.fromkeys(needed))
            self.config.add_cleanup(self._ahead.close)
            if self._ahead.building:
                reporter = self.config.pluginmanager.getplugin("terminalreporter")
                reporter.write_line(f"building {', '.join(self._ahead.building)} beside the tests")
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        building = set(self._ahead.building if self._ahead else ())
        ready = (scope for scope in self.workqueue if building.isdisjoint(_PROGRAMS.get(scope, ())))
        if (first := next(ready, None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the control plane's tests first, as they mostly wait while another worker computes, and short ones last."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if group(item.nodeid) == "control plane":
        return 0
    return 1 if item.get_closest_marker("slow") else 2


def pytest_collection_finish() -> None:
    """Exempt collected tests from garbage collection, which MindSpore runs for every graph."""
    gc.collect()
    gc.freeze()
