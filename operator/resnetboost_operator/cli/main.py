"""The `resnetboost` command line: the registry of its commands. A new command is a new module and a line here."""

import click

from resnetboost_operator import __version__
from resnetboost_operator.cli.group import Entry, LazyGroup

_CLI = "resnetboost_operator.cli"
COMMANDS = {
    "card": Entry(f"{_CLI}.trainer.card:card", "Print the model card of a trained network."),
    "compare": Entry(f"{_CLI}.compare.command:compare", "Compare runs: accuracy, time to accuracy, settings."),
    "convert": Entry(f"{_CLI}.trainer.convert:convert", "Convert weights between PyTorch's names and this trainer's."),
    "data": Entry(f"{_CLI}.trainer.data:data", "Prepare data sets."),
    "doctor": Entry(f"{_CLI}.doctor.command:doctor", "Examine this machine or a cluster, and say what to repair."),
    "eval": Entry(f"{_CLI}.trainer.eval:evaluate", "Evaluate a trained network on a test set."),
    "export": Entry(f"{_CLI}.trainer.export:export", "Export a trained network as ONNX, MINDIR or AIR."),
    "lr-find": Entry(f"{_CLI}.lrfind.command:lr_find", "Find a learning rate by a sweep on the job's own data."),
    "plan": Entry(f"{_CLI}.plan:plan", "Print the Kubernetes objects of the job's first attempt."),
    "predict": Entry(f"{_CLI}.trainer.predict:predict", "Classify images with a trained network."),
    "profile": Entry(f"{_CLI}.profile.command:profile", "Show where the time of a training step goes."),
    "ranktable": Entry(f"{_CLI}.ranktable.command:ranktable", "Create, merge, check and show HCCL's rank tables."),
    "report": Entry(f"{_CLI}.report:report", "Redraw the report of a run folder."),
    "run": Entry(f"{_CLI}.run.command:run", "Run a job on this machine, one process per rank."),
    "status": Entry(f"{_CLI}.status.command:status", "Show the status of local runs and of the jobs in a cluster."),
    "sweep": Entry(f"{_CLI}.sweep.command:sweep", "Try values of a job's fields, here or on a cluster."),
    "validate": Entry(f"{_CLI}.validate:validate", "Check job files against the API, without a cluster."),
}

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="resnetboost")
def main() -> None:
    """Train ResNets from a job file, on this machine or (with kubectl apply) on Kubernetes.

    \b
    Examples:
      resnetboost run examples/digits.yaml
      resnetboost validate examples/digits.yaml
      resnetboost COMMAND --help
    """
