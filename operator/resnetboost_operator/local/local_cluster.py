"""This machine as a cluster: runs pods as processes, like a kubelet."""

import asyncio
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from resnetboost_api import names
from resnetboost_operator.local import machine, podfiles
from resnetboost_operator.local.podprocess import PodProcess

Manifest = dict[str, Any]


class LocalCluster:
    """The pods, config maps, secrets and services of one run, in `folder`.

    `changed` is called whenever the result of `observe` may have changed. No pod outlives `close` or this process.
    """

    def __init__(self, folder: Path, changed: Callable[[], None], cores: Sequence[int] | None = None) -> None:
        self._folder = folder.resolve()
        self._changed = changed
        self._cores = tuple(cores or machine.usable_cores())
        self._addresses = machine.Addresses()
        self._config_maps: dict[str, Manifest] = {}
        self._secrets: dict[str, Manifest] = {}
        self._services: dict[str, tuple[Manifest, str]] = {}
        self._pods: dict[str, PodProcess] = {}

    @property
    def running(self) -> bool:
        """True while the process of any pod runs."""
        return any(pod.running for pod in self._pods.values())

    def observe(self) -> tuple[Manifest, ...]:
        """All pods as manifests. A deleted pod shows its end once, as in a watch, and is then gone."""
        seen = tuple(pod.to_dict() for pod in self._pods.values())
        gone = [pod for pod in self._pods.values() if pod.deleting_since is not None and not pod.running]
        for pod in gone:
            del self._pods[pod.name]
        if gone:
            self._changed()
        return seen

    def create(self, manifests: Iterable[Manifest]) -> None:
        """Create missing objects; a service gets the address of the pod that it selects, even before that exists."""
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            if manifest["kind"] == "ConfigMap":
                self._config_maps[name] = manifest
            elif manifest["kind"] == "Secret":
                self._secrets[name] = manifest
            elif manifest["kind"] == "Service":
                self._services.setdefault(name, (manifest, self._addresses.next()))
            elif name not in self._pods:
                self._start(manifest)
        self._changed()

    def _start(self, manifest: Manifest) -> None:
        pod = PodProcess(_bound(manifest, platform.node()), self._address(manifest), self._changed)
        cores = machine.share(self._cores, *_place(manifest))
        own, logs = self._folder / "pods" / pod.name, self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        mounts = podfiles.mount(pod.manifest, self._config_maps, self._secrets, own, self._folder)
        environment = podfiles.environment(pod.manifest, pod.address, len(cores), mounts, self._hosts())
        pod.start(environment, cores, logs / f"{pod.name}.log", own / "termination-log")
        self._pods[pod.name] = pod

    def _address(self, pod: Manifest) -> str:
        """The address of a pod, reserved if it does not exist yet."""
        selecting = (address for service, address in self._services.values() if _selects(service, pod))
        return next(selecting, None) or self._addresses.next()

    def _hosts(self) -> dict[str, str]:
        """The cluster's DNS: addresses by service name."""
        return {
            names.service_host(name, service["metadata"].get("namespace", "default")): address
            for name, (service, address) in self._services.items()
        }

    def delete(self, name: str, uid: str, grace_seconds: float) -> None:
        """Delete the pod with that uid: SIGTERM, and SIGKILL after the grace period."""
        pod = self._pods.get(name)
        if pod is not None and pod.uid == uid:
            pod.delete(grace_seconds)
            self._changed()

    def kill(self) -> None:
        """Kill all processes at once."""
        for pod in self._pods.values():
            pod.kill()

    async def close(self) -> None:
        """Kill all processes and wait for their end."""
        self.kill()
        await asyncio.gather(*(pod.gone.wait() for pod in self._pods.values()))
        self._addresses.close()


def _bound(manifest: Manifest, node: str) -> Manifest:
    """The pod after scheduling: bound to this node."""
    return {**manifest, "spec": {**manifest["spec"], "nodeName": node}}


def _place(pod: Manifest) -> tuple[int, int]:
    """(index, number of ranks) of a pod, which determine its share of the cores."""
    environment = {
        variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0].get("env") or ()
    }
    index = pod["metadata"]["labels"][names.LABEL_INDEX]
    return int(index), int(environment.get(names.ENV_WORLD_SIZE) or 1)


def _selects(service: Manifest, pod: Manifest) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in service["spec"]["selector"].items())
