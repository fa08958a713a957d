"""`python -m fuzz`: fuzz targets and print what became of their inputs; exit code 1 if one broke a promise."""

from pathlib import Path

import click

from fuzz import run
from fuzz.targets import TARGETS

OUT = Path(__file__).parents[2] / "build" / "fuzz"
COLUMNS = ("target", "cases", "accepted", "refused", "slowest", "memory grew by", "time", "broken")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


@click.command()
@click.option("--cases", default=1000, show_default=True, help="Mutated inputs of each target.")
@click.option("--seed", default=0, show_default=True, help="Seed of the mutations.")
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)))
def main(cases: int, seed: int, targets: tuple[str, ...]) -> None:
    """Fuzz TARGETS, by default all."""
    click.echo(HEAD)
    broken = 0
    for name in targets or tuple(TARGETS):
        result = run.fuzz(name, cases, seed)
        click.echo(_row(result))
        for place, (data, story) in result.broken.items():
            path = OUT / name / run.digest(data)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            click.echo(f"{place}: {path}\n{story}", err=True)
        broken += len(result.broken)
    raise SystemExit(broken > 0)


def _row(result: run.Result) -> str:
    cells = (
        result.name,
        f"{result.cases}",
        f"{result.accepted}",
        f"{result.refused}",
        f"{result.slowest_seconds * 1000:.0f} ms",
        f"{result.grown_bytes / (1 << 20):.0f} MiB",
        f"{result.seconds:.0f} s",
        f"{len(result.broken)}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
