"""`resnetboost doctor`: says whether this machine, or a cluster, can run jobs, and what to do if not."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import process
from resnetboost_operator.errors import UserError


@click.command()
@click.option("--cluster", is_flag=True, help="Examine the cluster in $KUBECONFIG instead of this machine.")
@click.option("-n", "--namespace", metavar="NAME", default="", help="With --cluster: namespace of your jobs.")
@click.option("--runs", type=click.Path(path_type=Path), metavar="DIR", help="Folder of runs.  [default: runs]")
@click.option(
    "--self-check/--no-self-check",
    default=None,
    help="Compute an all-reduce and steps of each algorithm.  [default: where a device is]",
)
@click.option("--device", type=click.Choice(["CPU", "Ascend", "GPU"]), help="Device of the self-checks.")
@click.option("--ranks", type=click.IntRange(1, 16), metavar="N", help="Ranks of the self-checks.")
@click.option("--seconds", type=click.FloatRange(1), metavar="N", help="Time limit of each self-check.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write a file for a bug report.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def doctor(ctx: click.Context, /, cluster: bool, namespace: str, output: str, **given: Any) -> None:
    """Examine this machine, or with --cluster a cluster: one line per finding, each with a remedy.

    Reads only. The self-checks (some minutes; by default where an NPU or GPU is) train a small network for three
    steps by each algorithm and compare the numbers with the CPU's. They write resnetboost-doctor.json, which can
    be attached to a bug report, without environment variables; names and addresses that look like such are replaced.
    Read it before you attach it.

    \b
    Exit codes:
      0   no problem; warnings do not count
      1   at least one problem
      10  no cluster or no trainer, or a wrong option: the message says which
      15  the file for the bug report cannot be written
      130 Ctrl-C

    \b
    Examples:
      resnetboost doctor
      resnetboost doctor --self-check
      resnetboost doctor --cluster -n team-a -o json | jq '.findings[] | select(.level != "ok")'
    """
    if cluster:
        if any(value is not None for value in given.values()):
            raise UserError("--cluster reads a cluster: of the other options only -n and -o are for it")
        from resnetboost_operator.cli.doctor.cluster import command

        ctx.exit(command.run(namespace, output))
    if namespace:
        raise UserError("-n names a namespace of a cluster; add --cluster")
    if given.pop("self_check") is False:
        ctx.exit(process.run("doctor", [], output=output, no_self_check=True, **given))
    ctx.exit(process.run("doctor", [], output=output, self_check=ctx.params["self_check"], **given))
