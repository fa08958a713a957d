"""`python -m beds.kubelet`: a cluster with a real node in the foreground, to install the operator on or to break."""

import contextlib
import os
import shlex
import time
from typing import Self

import click

from beds.cluster import build
from beds.cluster.errors import ClusterError
from beds.cluster.helm import CHART
from beds.kubelet import Bed, operatorpod, unavailable
from beds.kubelet.onnode import OnNode
from beds.prometheus import Prometheus
from beds.prometheus.operator import PrometheusOperator, Written
from beds.queue.manager import Manager

_CHECK_SECONDS = 1
_VOLUMES = 4  # there is no provisioner: claims of 1Gi without a storage class are bound to these


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kueue", is_flag=True, help="With Kueue's controller manager.")
@click.option("--monitoring", is_flag=True, help="With the Prometheus operator and a Prometheus.")
def main(kueue: bool, monitoring: bool) -> None:
    """Run Kubernetes with one node that has this tree's images, until Ctrl-C."""
    try:
        if reason := unavailable():
            raise ClusterError(reason)
        wanted = [*(build.KUEUE if kueue else ()), *(build.MONITORING if monitoring else ())]
        programs = build.programs(dict.fromkeys((*build.CONTROL_PLANE, *build.NODE, *build.HELM, *wanted)))
        click.echo("cluster: starting a control plane, and a node with the images of this tree")
        with Bed() as bed, contextlib.ExitStack() as stack:
            for number in range(_VOLUMES):
                bed.add_volume(f"volume-{number}")
            if kueue:
                Manager(bed.plane, OnNode(bed.sandbox)).start()
            monitor = stack.enter_context(Monitor(bed)) if monitoring else None
            tell(bed, sorted({str(path.parent) for path in programs.values()}), kueue, monitor)
            while True:
                bed.plane.processes.check()
                if monitor is not None:
                    monitor.follow()
                time.sleep(_CHECK_SECONDS)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("\ncluster: stopped")


class Monitor:
    """The Prometheus operator and its Prometheus, which has always what the operator has written last."""

    def __init__(self, bed: Bed) -> None:
        self._operator = PrometheusOperator(bed.plane)
        self._operator.start()
        self._prometheus = Prometheus({}, (), OnNode(bed.sandbox), self._operator.prometheus)
        self._known: Written | None = None

    def __enter__(self) -> Self:
        self._prometheus.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._prometheus.__exit__()

    @property
    def url(self) -> str:
        """Where Prometheus can be asked, from this machine."""
        return self._prometheus.api.url

    def follow(self) -> None:
        """Give Prometheus what the operator has written meanwhile."""
        written = self._operator.written()
        if written is None or written == self._known:
            return
        self._known = written
        files = [self._prometheus.folder / f"rules-{name}" for name in written.rules]
        for file, text in zip(files, written.rules.values(), strict=True):
            file.write_text(text)
        self._prometheus.configure(written.configuration, files)


def tell(bed: Bed, folders: list[str], kueue: bool, monitor: Monitor | None) -> None:
    """Print how to use it from another terminal."""
    environment = bed.plane.environment()
    click.echo(f"cluster: Kubernetes serves at {bed.plane.url}; files are in {bed.folder} and {bed.plane.folder}\n")
    click.echo("In another terminal:\n")
    for name in ("KUBECONFIG", "KUBECACHEDIR"):
        click.echo(f"  export {name}={shlex.quote(environment[name])}")
    click.echo(f"  export PATH={shlex.quote(':'.join(folders))}:$PATH")
    click.echo(f"  helm {shlex.join(operatorpod.installation(os.path.relpath(CHART)))}\n")
    click.echo(f"{_VOLUMES} volumes of 1Gi wait for claims.")
    click.echo("Kueue runs, and has no queues yet." if kueue else "There is no Kueue: WITH=kueue starts it.")
    if monitor is not None:
        click.echo(f"Prometheus is at {monitor.url}; the Prometheus operator lets it take every monitor and rule.")
    else:
        click.echo("There is no Prometheus operator: WITH=monitoring starts it with a Prometheus.")
    click.echo("What helm prints goes on from there. Ctrl-C here stops everything and removes it.")


if __name__ == "__main__":
    main(prog_name="python -m beds.kubelet")
