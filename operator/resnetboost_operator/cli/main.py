"""The command line: what it takes and says; its commands import what does the work when they are called."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from resnetboost_operator import __version__, readable
from resnetboost_operator.cli import trained
from resnetboost_operator.cli.ranktable.command import ranktable
from resnetboost_operator.errors import UserError, storage_error

if TYPE_CHECKING:
    from resnetboost_operator.cli.status.command import Form

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    """Errors a user can mend become sentences on stderr and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(str(error), error.exit_code)
        except BrokenPipeError:
            raise
        except OSError as error:
            found = storage_error(error)
            _fail(str(found), found.exit_code)


def _fail(sentences: str, code: int) -> NoReturn:
    readable.make_plain(sys.stderr)
    for line in sentences.split("\n"):
        print(f"resnetboost: {readable.printable(line)}", file=sys.stderr)
    sys.exit(code)


_FILE = click.argument("file", type=click.Path(path_type=Path))
_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_SET: Callable[[Any], Any] = click.option(
    "--set",
    "assignments",
    metavar="PATH=VALUE",
    multiple=True,
    help="Change a field of the job: stages[0].epochs=3. May be repeated; 'spec.' may be left out; the value is YAML.",
)


@click.group(cls=_Group, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="resnetboost")
def main() -> None:
    """Train ResNets from a job file, on this machine or (with kubectl apply) on Kubernetes.

    \b
    Examples:
      resnetboost run examples/digits.yaml
      resnetboost validate examples/digits.yaml
      resnetboost COMMAND --help
    """


@main.command()
@_FILE
@_SET
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run folder. [default: runs/<job name>]")
@click.option("--fresh", is_flag=True, help="Remove what an earlier run left in the run folder and start over.")
@click.pass_context
def run(ctx: click.Context, file: Path, assignments: tuple[str, ...], out: Path | None, fresh: bool) -> None:
    """Run the job FILE on this machine, one process for each rank.

    Progress, metrics, logs, checkpoints and the report go to the run folder. Running the same job with the
    same folder again resumes it from its newest checkpoint.

    Ctrl-C (or SIGTERM) stops all ranks after the same step and keeps a checkpoint; a second one kills them.

    \b
    Exit codes:
      0 complete              12 numerics (NaN or divergence)   15 storage
      10 job file or option   13 out of memory                  16 interrupted, resumable
      11 data set             14 communication between ranks    1 anything else

    \b
    Examples:
      resnetboost run examples/digits.yaml
      resnetboost run examples/digits.yaml --set stages[0].epochs=3 --set device.count=1
      resnetboost run examples/digits.yaml --out /tmp/try --fresh
    """
    from resnetboost_operator.cli.run import command

    ctx.exit(command.run(file, assignments, out, fresh, _command(file, assignments, out)))


def _command(file: Path, assignments: tuple[str, ...], out: Path | None) -> str:
    """The command that resumes this run."""
    options = [word for assignment in assignments for word in ("--set", assignment)]
    folder = ["--out", str(out)] if out is not None else []
    return shlex.join([_program(), "run", str(file), *options, *folder])


def _program() -> str:
    """This program as the user can call it again: by its name if that finds it, else by its path."""
    name = Path(sys.argv[0]).name
    if name != "resnetboost" or shutil.which(name) == sys.argv[0]:
        return "resnetboost"
    return sys.argv[0]


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
def validate(files: tuple[Path, ...]) -> None:
    """Check job files against the API, without a cluster.

    Types, unknown fields, ranges and the rules between fields are those that kubectl apply would meet. Of a file with
    several documents each job is checked; other objects beside them are left to kubectl.
    Exit code 10 if any file has a problem; a note on a setting that will not help is none.

    \b
    Example:
      resnetboost validate examples/*.yaml
    """
    from resnetboost_operator.cli import job_file
    from resnetboost_operator.cli.run import data_notes
    from resnetboost_operator.validation.notes import notes, of_cluster

    problems: list[str] = []
    for file in files:
        try:
            for place, job in job_file.load_all(file):
                if isinstance(job, job_file.JobError):
                    problems += job.problems
                    continue
                spec = job["spec"]
                told = (*notes(spec), *of_cluster(spec), *data_notes.of(spec))
                noted = "".join(f"; note: {note}" for note in told)
                click.echo(readable.printable(f"{place}: ok ({job['metadata']['name']}){noted}"))
        except job_file.JobError as error:
            problems += error.problems
    if problems:
        raise job_file.JobError(problems)


@main.command()
@_FILE
@_SET
def plan(file: Path, assignments: tuple[str, ...]) -> None:
    """Print the Kubernetes objects of the first attempt of the job FILE, as YAML.

    Nothing is created. The job's uid is a placeholder: a cluster gives the real one.

    \b
    Examples:
      resnetboost plan examples/digits.yaml
      resnetboost plan examples/digits.yaml --set device.count=4 | less
    """
    from resnetboost_operator import yamltext
    from resnetboost_operator.cli import job_file
    from resnetboost_operator.cli import plan as plan_command
    from resnetboost_operator.validation.notes import notes, of_cluster

    job = job_file.load(file, assignments)
    for note in (*notes(job["spec"]), *of_cluster(job["spec"])):
        click.echo(f"resnetboost: note: {note}", err=True)
    click.echo(yamltext.dump_all(plan_command.objects(job)), nl=False)


@main.command()
@_FOLDER
def report(folder: Path) -> None:
    """Write report.html and report.png of the run folder DIR anew.

    A run does this by itself at its end; this works at any time, also while it runs.

    \b
    Example:
      resnetboost report runs/digits
    """
    from resnetboost_operator.runs import report as reports
    from resnetboost_operator.runs import runfolder

    found = runfolder.open_existing(folder)
    reports.write_report(found)
    click.echo(found.report_html)


@main.command(short_help="Tell how runs here and the jobs of a cluster go.")
@click.argument("target", metavar="[JOB|RUN]", required=False, default="")
@click.option("-w", "--watch", "follow", is_flag=True, help="Follow what changes; of one JOB or RUN until it is over.")
@click.option("-n", "--namespace", metavar="NAME", default="", help="Look there.  [default: the context's namespace]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Look in all namespaces.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["json", "yaml"]),
    help="Print the objects as kubectl would, for programs; with -w one after another.",
)
@click.pass_context
def status(
    ctx: click.Context, target: str, follow: bool, namespace: str, everywhere: bool, form: "Form | None"
) -> None:
    """Tell how a RUN of this machine or a JOB of the cluster goes or went; without a name list them all.

    A RUN is a folder of `resnetboost run`, written with a / (runs/digits), or its name where it is in the folder runs
    here. -n, -A and -o are for jobs of the cluster alone.

    The cluster is the one that $KUBECONFIG (else ~/.kube/config) names. It takes the verb list on
    resnetboostjobs, and watch for -w; nothing is polled.

    \b
    Exit codes:
      0   told; with JOB or RUN and -w: it is complete
      1   with JOB or RUN and -w: it has failed, was stopped or deleted
      10  no cluster, no right, no such job or folder: the sentence says which
      130 Ctrl-C

    \b
    Examples:
      resnetboost status
      resnetboost status runs/digits -w
      resnetboost status digits -n team-a
      resnetboost status digits -n team-a -w && kubectl delete rbj digits -n team-a
      resnetboost status -A -o json | jq '.items[].status.phase'
    """
    from resnetboost_operator.cli.status import command

    wanted = command.Wanted(target, namespace, everywhere, follow, form or "text")
    ctx.exit(command.run(wanted))


@main.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["torch", "resnetboost"]), help="What OUT becomes. [default: the other one]")
@trained.WEIGHTS
@click.option("--model", metavar="NAME", help="What IN must be, such as resnet50. [default: any of the family]")
@click.pass_context
def convert(
    ctx: click.Context, source: Path, target: Path, to: str | None, weights: str | None, model: str | None
) -> None:
    """Convert weights between PyTorch's names and this trainer's; what is in the file IN says which way.

    IN is torchvision's or timm's state dict (.safetensors, or .pth as torch.save writes it; nothing in it is
    executed), a checkpoint's folder or its model.safetensors, or a run's folder, whose newest whole checkpoint is
    taken. OUT is a .safetensors file.

    \b
    Examples:
      resnetboost convert resnet50.pth resnet50.safetensors
      resnetboost convert runs/digits for-pytorch.safetensors
    """
    from resnetboost_operator.cli import trainer

    options = {"--to": to, "--weights": weights, "--model": model}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    ctx.exit(trainer.run("convert", [*given, "--", str(source), str(target)]))


@main.command(short_help="Show where the time of a training step goes.")
@_FILE
@_SET
@click.option("--stage", metavar="NAME", help="Profile this stage.  [default: the first one]")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks on this machine.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps to measure.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder. [default: profiles/<job name>]")
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="Print profile.json instead of tables.")
@click.pass_context
def profile(
    ctx: click.Context,
    file: Path,
    assignments: tuple[str, ...],
    stage: str | None,
    ranks: int,
    steps: int,
    out: Path | None,
    form: str | None,
) -> None:
    """Train some steps of the job FILE on this machine and show where rank 0's time goes.

    By part of a step (data, forward, backward, reduction, optimizer) and by operator, as tables, profile.json and
    profile.png; what MindSpore's own profiler wrote stays in DIR/mindspore. Weights are fresh, nothing is kept of them.

    \b
    Exit codes are those of `resnetboost run`; Ctrl-C: 130.

    \b
    Examples:
      resnetboost profile examples/digits.yaml
      resnetboost profile examples/digits.yaml --ranks 2 --set stages[0].localBatchSize=64
      resnetboost profile job.yaml -o json | jq '.times.parts[] | {name, ms: (.seconds.mean * 1000)}'
    """
    from resnetboost_operator.cli.profile import command

    wanted = command.Wanted(file, assignments, stage, ranks, steps, out, json=form == "json")
    ctx.exit(command.run(wanted))


@main.group(cls=_Group)
def data() -> None:
    """Prepare data sets."""


@data.command("to-mindrecord")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--train", metavar="NAME", default="train", show_default=True, help="Folder in IN to train on.")
@click.option("--test", metavar="NAME", default="val", show_default=True, help="Folder in IN to test with.")
@click.option("--shards", type=click.IntRange(1, 1000), default=1, show_default=True, help="Files for each of the two.")
@click.option("--skip", type=click.IntRange(0), default=0, show_default=True, help="Unusable images to leave out.")
@click.pass_context
def to_mindrecord(
    ctx: click.Context, source: Path, target: Path, train: str, test: str, shards: int, skip: int
) -> None:
    """Write the images of the folder IN, one folder for each class, into MindRecord files in the new folder OUT.

    Files are copied as they are, after a look whether they can be decoded. A job reads OUT as data set MindRecord;
    training from it is the same to the bit as from IN.

    \b
    Example:
      resnetboost data to-mindrecord imagenet imagenet-records --shards 16
    """
    from resnetboost_operator.cli import trainer

    options = {"--train": train, "--test": test, "--shards": str(shards), "--skip": str(skip)}
    given = [word for pair in options.items() for word in pair]
    ctx.exit(trainer.run("tomindrecord", [*given, "--", str(source), str(target)]))


main.add_command(ranktable)
for _trained in (trained.evaluate, trained.predict, trained.export, trained.card):
    main.add_command(_trained)
