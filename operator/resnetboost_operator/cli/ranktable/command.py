"""`resnetboost ranktable`: makes, merges, judges and shows HCCL's rank tables as files; the rules are ranktable's."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from resnetboost_operator.ranktable.chips import Chip

_CHIPS = ("910A", "910B", "A3", "950")
_CHIP = click.option(
    "--chip",
    type=click.Choice(_CHIPS, case_sensitive=False),
    metavar="CHIP",
    help="Judge for 910A (Atlas training series), 910B (Atlas A2), A3 or 950. "
    "[default: all that read the table's version]",
)
_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Write it there at once and whole, as HCCL wants it. [default: print it]",
)


@click.group()
def ranktable() -> None:
    """Make, merge, check and show HCCL's rank tables (RANK_TABLE_FILE).

    On Kubernetes the operator makes the table itself; these commands are for machines without it, and to find out why
    HCCL refuses a table. They replace hccl_tools.py and merge_hccl.py, need no NPU, and were never tried on one.

    \b
    Examples:
      resnetboost ranktable generate -o hccl.json
      resnetboost ranktable merge node-*.json -o hccl.json
      resnetboost ranktable check hccl.json --chip 910B
      resnetboost ranktable show hccl.json
    """


@ranktable.command(short_help="Make a table from hccn.conf or the output of hccn_tool.")
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--server-id", "server_ids", multiple=True, metavar="ID", help="Id of each SOURCE's server, in their order."
)
@click.option("--devices", metavar="LIST", help="Devices to use on each server, such as 0-3,6. [default: all]")
@_CHIP
@_OUTPUT
def generate(
    sources: tuple[str, ...],
    server_ids: tuple[str, ...],
    devices: str | None,
    chip: "Chip | None",
    output: Path | None,
) -> None:
    """Make a table of version 1.0 from the addresses in each SOURCE, one for each server.

    A SOURCE is a server's hccn.conf, or what `hccn_tool -i N -ip -g` printed for its devices; - is standard input,
    and without any it is /etc/hccn.conf of this machine. hccn_tool does not print N: call it for 0, 1, 2 ... or for
    the devices of --devices in their order, or leave the calls in the text (`set -x`).

    Ranks follow the order of the SOURCEs and the devices. Without --server-id a single SOURCE has the name of this
    machine and several have those of their files. Nothing is written that no chip's HCCL would take (exit code 10).

    \b
    Examples:
      resnetboost ranktable generate -o hccl.json
      resnetboost ranktable generate --devices 0-3 --chip 910A
      resnetboost ranktable generate node-0.conf node-1.conf -o hccl.json
      ssh node-1 cat /etc/hccn.conf | resnetboost ranktable generate - --server-id node-1
      for i in 0 1 2 3; do hccn_tool -i $i -ip -g; done | resnetboost ranktable generate -
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    found = ranktable_files.generate(sources or ("/etc/hccn.conf",), server_ids, devices)
    ranktable_files.deliver(found, chip, output)


@ranktable.command(short_help="Make one table of those of several servers.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_CHIP
@_OUTPUT
def merge(files: tuple[str, ...], chip: "Chip | None", output: Path | None) -> None:
    """Make one table of several FILEs of one version, ranks in the order of the FILEs.

    Entries with the same server_id (containers on one host) become one entry, servers of one super pod neighbours.
    Nothing is written that no chip's HCCL would take (exit code 10).

    \b
    Example:
      resnetboost ranktable merge node-0.json node-1.json -o hccl.json
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    merged = ranktable_files.merge(files)
    ranktable_files.deliver(merged.table, chip, output, merged.origins)


@ranktable.command(short_help="Tell what HCCL would say of a table.")
@click.argument("file")
@_CHIP
@click.pass_context
def check(ctx: click.Context, file: str, chip: "Chip | None") -> None:
    """Tell what HCCL would say of the table in FILE (- is standard input).

    Every rule of HCCL's parser and documents is looked at, also behind the first error, where HCCL itself stops.
    Each finding has its place, HCCL's error, the parser's function or the document, and what would be right.

    Without --chip the table is judged for every chip that reads its version. The exit code is 0 if one of them
    accepts it, and 10 if none does; warnings change nothing.

    \b
    Examples:
      resnetboost ranktable check hccl.json
      resnetboost ranktable check hccl.json --chip 910A
      kubectl get configmap digits-base-0 -o jsonpath='{.data.hccl\\.json}' | resnetboost ranktable check -
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    ctx.exit(ranktable_files.check(file, chip))


@ranktable.command(short_help="Show the ranks of a table.")
@click.argument("file")
def show(file: str) -> None:
    """Show the ranks of the table in FILE (- is standard input), one in a line; it judges nothing.

    \b
    Example:
      resnetboost ranktable show hccl.json
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    ranktable_files.show(file)
