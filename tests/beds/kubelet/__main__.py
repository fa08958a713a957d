"""`python -m beds.kubelet`: a cluster with a real node in the foreground, to install the operator on or to break."""

import os
import shlex
import time

import click

from beds.cluster import build
from beds.cluster.errors import ClusterError
from beds.cluster.helm import CHART
from beds.kubelet import Bed, operatorpod, unavailable

_CHECK_SECONDS = 1
_VOLUMES = 4  # there is no provisioner: claims of 1Gi without a storage class are bound to these


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run Kubernetes with one node that has this tree's images, until Ctrl-C."""
    try:
        if reason := unavailable():
            raise ClusterError(reason)
        programs = build.programs((*build.CONTROL_PLANE, *build.NODE, *build.HELM))
        click.echo("cluster: starting a control plane, and a node with the images of this tree")
        with Bed() as bed:
            for number in range(_VOLUMES):
                bed.add_volume(f"volume-{number}")
            tell(bed, sorted({str(path.parent) for path in programs.values()}))
            while True:
                bed.plane.processes.check()
                time.sleep(_CHECK_SECONDS)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("\ncluster: stopped")


def tell(bed: Bed, folders: list[str]) -> None:
    """Print how to use it from another terminal."""
    environment = bed.plane.environment()
    click.echo(f"cluster: Kubernetes serves at {bed.plane.url}; files are in {bed.folder} and {bed.plane.folder}\n")
    click.echo("In another terminal:\n")
    for name in ("KUBECONFIG", "KUBECACHEDIR"):
        click.echo(f"  export {name}={shlex.quote(environment[name])}")
    click.echo(f"  export PATH={shlex.quote(':'.join(folders))}:$PATH")
    click.echo(f"  helm {shlex.join(operatorpod.installation(os.path.relpath(CHART)))}\n")
    click.echo(f"{_VOLUMES} volumes of 1Gi wait for claims. There is no Kueue and no Prometheus operator.")
    click.echo("What helm prints goes on from there. Ctrl-C here stops everything and removes it.")


if __name__ == "__main__":
    main(prog_name="python -m beds.kubelet")
