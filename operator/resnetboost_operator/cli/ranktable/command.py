"""`resnetboost ranktable`: creates, merges, checks and shows HCCL's rank tables as files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from resnetboost_operator.ranktable.chips import Chip

_CHIPS = ("910A", "910B", "A3", "950")


class _Chips(click.Choice[str]):
    """The chips in any case; click itself lists the choices in lower case then."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """List the chips as they are written."""
        return f"{value!r} is not one of {', '.join(_CHIPS)}."


_CHIP = click.option(
    "--chip",
    type=_Chips(_CHIPS, case_sensitive=False),
    metavar="CHIP",
    help="Chip to check for: 910A (Atlas training series), 910B (Atlas A2), A3 or 950. "
    "[default: all that read the table's version]",
)
_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Output file, written atomically. [default: standard output]",
)


@click.group()
def ranktable() -> None:
    """Create, merge, check and show HCCL's rank tables (RANK_TABLE_FILE).

    On Kubernetes the operator creates the table. Use these commands on other machines, or to find out why HCCL refuses
    a table. They replace hccl_tools.py and merge_hccl.py and need no NPU; they were never verified on one.

    \b
    Examples:
      resnetboost ranktable generate -o hccl.json
      resnetboost ranktable merge node-*.json -o hccl.json
      resnetboost ranktable check hccl.json --chip 910B
      resnetboost ranktable show hccl.json
    """


@ranktable.command(short_help="Create a table from hccn.conf or the output of hccn_tool.")
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--server-id", "server_ids", multiple=True, metavar="ID", help="Server id of each SOURCE, in the same order."
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
    """Create a table of version 1.0 from the addresses in each SOURCE, one per server.

    A SOURCE is a server's hccn.conf, or the output of `hccn_tool -i N -ip -g` for its devices; - is standard input.
    The default is /etc/hccn.conf of this machine. hccn_tool does not print N, so call it for 0, 1, 2 ..., or for the
    devices of --devices in order, or keep the calls in the output (`set -x`).

    Ranks follow the order of the SOURCEs and their devices. The default server id is this machine's name for a single
    SOURCE, and the file name for several. A table that no chip accepts is not written (exit code 10).

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


@ranktable.command(short_help="Merge the tables of several servers.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_CHIP
@_OUTPUT
def merge(files: tuple[str, ...], chip: "Chip | None", output: Path | None) -> None:
    """Merge several FILEs of one version into one table, with ranks in the order of the FILEs.

    Entries with the same server_id (containers on one host) become one entry; servers of one super pod become
    neighbours. A table that no chip accepts is not written (exit code 10).

    \b
    Example:
      resnetboost ranktable merge node-0.json node-1.json -o hccl.json
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    merged = ranktable_files.merge(files)
    ranktable_files.deliver(merged.table, chip, output, merged.origins)


@ranktable.command(short_help="Check a table by HCCL's rules.")
@click.argument("file")
@_CHIP
@click.pass_context
def check(ctx: click.Context, file: str, chip: "Chip | None") -> None:
    """Check the table in FILE (- for standard input) by HCCL's rules.

    Checks every rule of HCCL's parser and documents. HCCL stops at the first error; this command continues. Each
    finding names the place, HCCL's error, the source of the rule and the remedy.

    Without --chip, checks the table for every chip that reads its version. The exit code is 0 if at least one accepts
    it, 10 if none does; warnings do not change it.

    \b
    Examples:
      resnetboost ranktable check hccl.json
      resnetboost ranktable check hccl.json --chip 910A
      kubectl get configmaps -l resnetboost.io/job=digits -o jsonpath='{.items[*].data.hccl\\.json}' |
        resnetboost ranktable check -
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    ctx.exit(ranktable_files.check(file, chip))


@ranktable.command(short_help="Show the ranks of a table.")
@click.argument("file")
def show(file: str) -> None:
    """Show the ranks of the table in FILE (- for standard input), one per line, without checking it.

    \b
    Example:
      resnetboost ranktable show hccl.json
    """
    from resnetboost_operator.cli.ranktable import files as ranktable_files

    ranktable_files.show(file)
