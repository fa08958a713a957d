"""`python -m beds.cluster`: a control plane in the foreground, for experiments by hand."""

import os
import shlex
import sys
import time
from pathlib import Path

import click

from beds.cluster import build, releases
from beds.cluster.controlplane import ControlPlane
from beds.cluster.errors import ClusterError
from beds.cluster.nodes import RESOURCE

_CHECK_SECONDS = 1
_TWO_GANGS = Path(__file__).with_name("twogangs.yaml")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--nodes", type=click.IntRange(min=0), default=4, show_default=True, help="Nodes on which kwok runs pods."
)
@click.option("--crd", "crds", multiple=True, type=click.Path(exists=True, path_type=Path), help="Definition to apply.")
@click.option(
    "--gangs", is_flag=True, help="A newer Kubernetes, which places pods of a PodGroup together; a device on each node."
)
@click.option("--folder", type=click.Path(path_type=Path), help="New folder for logs and data, to keep.")
def main(nodes: int, crds: tuple[Path, ...], gangs: bool, folder: Path | None) -> None:
    """Run a Kubernetes control plane until Ctrl-C.

    It starts no containers: kwok sets pods to running.
    """
    try:
        release = releases.WITH_GANGS if gangs else releases.DEFAULT
        build.programs((*release.programs.values(), "kwok"))
        click.echo("cluster: starting etcd, the API server, controllers and scheduler")
        with ControlPlane(crds=crds, folder=folder, release=release) as plane:
            if nodes:
                plane.add_kwok_nodes(nodes, {RESOURCE: "1"} if gangs else None)
            tell(plane, nodes, gangs)
            while True:
                plane.processes.check()
                time.sleep(_CHECK_SECONDS)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("\ncluster: stopped")


def tell(plane: ControlPlane, nodes: int, gangs: bool) -> None:
    """Print how to use it from another terminal."""
    click.echo(f"cluster: Kubernetes serves at {plane.url} with {nodes} nodes; logs are in {plane.folder}\n")
    click.echo("In another terminal:\n")
    environment = plane.environment()
    programs, _, _ = environment["PATH"].partition(":")
    click.echo(f"  export KUBECONFIG={shlex.quote(environment['KUBECONFIG'])}")
    click.echo(f"  export KUBECACHEDIR={shlex.quote(environment['KUBECACHEDIR'])}")
    click.echo(f"  export PATH={shlex.quote(programs)}:$PATH")
    options = " --gang-scheduling" if gangs else ""
    click.echo(f"  {os.path.relpath(sys.executable)} -m resnetboost_operator{options}")
    click.echo("\nand in a third one, with the same exports:\n")
    click.echo("  kubectl apply -f examples/digits.yaml")
    click.echo("  kubectl get rbj -w")
    click.echo("  kubectl annotate pod NAME exit-code=1    # ends a running pod with this code")
    if gangs:
        click.echo(f"  kubectl apply -f {os.path.relpath(_TWO_GANGS)}    # 4 of 6 devices each: one waits")
        click.echo("  kubectl get podgroups,pods -o wide")
        click.echo(
            "  kubectl apply -f examples/gang-kubernetes.yaml    # waits for nodes with the label example.com/rack"
        )
    click.echo()
    click.echo("Ctrl-C here stops everything and removes it.")


if __name__ == "__main__":
    main(prog_name="python -m beds.cluster")
