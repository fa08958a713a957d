"""Writes model cards in Markdown: the network, its training, its results and how to use it.

The front matter is YAML with the keys of the Hugging Face hub's model cards. Texts from checkpoints are untrusted: each
is kept on one line, quoted by the YAML writer in the front matter and stripped of Markdown's special characters below.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from resnetboost_api import evaluation_details
from resnetboost_api.evaluation_details import EvaluationDetails
from resnetboost_trainer.checkpoint import lineage, versions
from resnetboost_trainer.checkpoint.lineage import Stage
from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.data.preprocessing import Preparation, readable

MAX_CLASSES = 20
MOST_CONFUSED = 5


class Facts(msgspec.Struct, frozen=True):
    """Contents of a model card; `exported` is the name and the format of the exported file.

    `details` are those of an evaluation by class, if one was recorded with the checkpoint.
    """

    network: Trained
    stages: Sequence[Stage]
    prepared: Preparation | None
    exported: tuple[str, str] | None
    details: EvaluationDetails | None = None


def facts(network: Trained, prepared: Preparation | None, exported: tuple[str, str] | None = None) -> Facts:
    """Collect the contents of a card, including the stages recorded in the checkpoint's folder."""
    stages = [] if network.manifest is None else lineage.stages(network.path, network.manifest, network.averaged)
    return Facts(network, stages, prepared, exported, _details(network))


def details_file(averaged: bool) -> str:
    """Name of the file in a checkpoint's folder with the details of an evaluation of its weights."""
    return f"averaged-{evaluation_details.FILE}" if averaged else evaluation_details.FILE


def _details(network: Trained) -> EvaluationDetails | None:
    """Read the details that were recorded with the checkpoint; None without, or if they are not of it."""
    path = network.path / details_file(network.averaged)
    try:
        if network.manifest is None or path.stat().st_size > evaluation_details.MAX_BYTES:
            return None
        found = evaluation_details.decode(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if (found.step, found.averaged) == (network.manifest.step, network.averaged) else None


def text(facts: Facts) -> str:
    """Return the model card as Markdown with YAML front matter."""
    parts = [
        f"---\n{_yaml(_front(facts))}---",
        f"# {_title(facts)}\n\n{_plain(facts.network.describe())}.",
        _training(facts),
        _by_class(facts.details),
        _data(facts),
        _use(facts),
        _versions(facts),
        _job(facts.network.manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(facts: Facts) -> dict[str, Any]:
    manifest = facts.network.manifest
    front: dict[str, Any] = {
        "library_name": "resnetboost",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "resnet", facts.network.network.name, "mindspore"],
    }
    if manifest is None:
        return front
    front["model"] = {
        "architecture": facts.network.network.name,
        "classes": facts.network.network.classes,
        "channels": facts.network.network.channels,
        "weights": "averaged" if facts.network.averaged else "trained",
        "weights_sha256": facts.network.sha256,
        **_best_front(manifest),
    }
    front["training"] = {
        "job": f"{manifest.job_namespace}/{manifest.job_name}",
        "uid": manifest.job_uid,
        "stages": [_stage_front(stage) for stage in facts.stages],
        "seed": manifest.seed,
    }
    front["dataset"] = {"name": _dataset(manifest), "fingerprint": manifest.dataset}
    front["versions"] = dict(manifest.versions)
    results = _metrics(facts)
    if results:
        entry = {
            "task": {"type": "image-classification"},
            "dataset": {
                "name": _dataset(manifest),
                "type": _dataset(manifest),
                "revision": manifest.dataset,
                **({} if _validation_split(manifest) is None else {"split": "validation"}),
            },
            "metrics": results,
        }
        front["model-index"] = [{"name": manifest.job_name, "results": [entry]}]
    return front


def _best_front(manifest: Manifest) -> dict[str, Any]:
    mark = manifest.best
    return {} if mark is None else {"best": {"metric": mark.metric, "value": mark.value, "step": manifest.step}}


def _stage_front(stage: Stage) -> dict[str, Any]:
    manifest = stage.manifest
    return {
        "name": manifest.stage,
        "algorithm": manifest.algorithm,
        "steps": manifest.step,
        "epochs": round(manifest.step / max(1, manifest.steps_per_epoch), 2),
        "ranks": manifest.world_size,
        "local_batch_size": manifest.local_batch_size,
        **({"stopped_early": stage.ended} if stage.ended else {}),
    }


def _metrics(facts: Facts) -> list[dict[str, Any]]:
    found = facts.stages[-1].evaluation if facts.stages else None
    if found is None:
        return []
    names = (("accuracy", "top-1 accuracy"), ("accuracy_top5", "top-5 accuracy"), ("loss", "test loss"))
    metrics = [{"type": kind, "name": name, "value": value} for (kind, name), value in zip(names, found, strict=True)]
    if facts.details is None or facts.details.dataset != facts.stages[-1].manifest.dataset:
        return metrics  # of another data set than the other figures
    error = facts.details.calibration_error
    return [*metrics, {"type": "ece", "name": "expected calibration error, 15 bins", "value": error}]


def _title(facts: Facts) -> str:
    manifest = facts.network.manifest
    return facts.network.network.name + (f", {_plain(manifest.job_name)}" if manifest is not None else "")


def _training(facts: Facts) -> str:
    if not facts.stages:
        return "How it was trained is not known: it is a file of weights."
    columns = ("stage", "algorithm", "epochs", "steps", "ranks × batch", "top-1", "top-5", "test loss")
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    rows = "\n".join(["## Training and results\n", *head, *(_row(stage) for stage in facts.stages)])
    ended = [f"Stage {stage.manifest.stage} ended early: {stage.ended}." for stage in facts.stages if stage.ended]
    return "\n\n".join([rows, *(_plain(sentence) for sentence in ended)])


def _row(stage: Stage) -> str:
    front = _stage_front(stage)
    manifest, found = stage.manifest, stage.evaluation
    results = ["", "", ""] if found is None else [f"{found[0]:.2%}", f"{found[1]:.2%}", f"{found[2]:.4f}"]
    gang = f"{manifest.world_size} × {manifest.local_batch_size}"
    cells = [manifest.stage, manifest.algorithm, str(front["epochs"]), str(manifest.step), gang, *results]
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _by_class(details: EvaluationDetails | None) -> str:
    """Return the section with the recall and precision of each class, or of those with the lowest recall."""
    if details is None:
        return ""
    known = [found for found in details.classes if found.recall is not None]
    shown = known if len(known) <= MAX_CLASSES else sorted(known, key=lambda found: found.recall or 0.0)[:MAX_CLASSES]
    rows = [
        f"| {_plain(found.name)} | {found.images} | {_share(found.recall)} | {_share(found.precision)} |"
        for found in shown
    ]
    which = "" if len(shown) == len(known) else f" The {MAX_CLASSES} of {len(known)} classes with the lowest recall:"
    confused = ", ".join(
        f"{_plain(actual)} for {_plain(taken)} ({images})"
        for actual, taken, images in evaluation_details.most_confused(details, MOST_CONFUSED)
    )
    return "\n".join(
        [
            "## By class\n",
            f"On {details.images} images of `{_plain(details.dataset)}`. Expected calibration error"
            f" ({evaluation_details.BINS} bins): {details.calibration_error:.4f}.{which}\n",
            "| class | images | recall | precision |",
            "|---|---|---|---|",
            *rows,
            *([f"\nMost often confused: {confused}."] if confused else []),
        ]
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _data(facts: Facts) -> str:
    manifest, prepared = facts.network.manifest, facts.prepared
    lines = ["## Data"]
    if manifest is not None:
        lines.append(f"Trained on {_plain(_dataset(manifest))}, fingerprint `{_plain(manifest.dataset)}`.")
        share = _validation_split(manifest)
        if share is not None:
            apart = f"{share:.3g} of each class of its training images was set apart"
            lines.append(f"{apart}; evaluations during training used those, not a test set.")
    if prepared is None:
        return "\n\n".join(lines) if len(lines) > 1 else ""
    colours = "grey" if len(prepared.mean) == 1 else "RGB"
    way = (
        f"the shorter side is resized to {prepared.resize} pixels and the central square cut out"
        if prepared.resize is not None
        else "the whole picture is brought to that size"
    )
    lines.append(
        f"Images are {colours}, {prepared.width} x {prepared.height} pixels: {way} (bilinear, antialiased)."
        f" Each channel is ({_pixel(prepared)}, mean {_numbers(prepared.mean)}, deviation"
        f" {_numbers(prepared.deviation)}."
    )
    if prepared.classes:
        listed = ", ".join(f"{place} {_plain(name)}" for place, name in enumerate(prepared.classes[:MAX_CLASSES]))
        rest = len(prepared.classes) - MAX_CLASSES
        lines.append(f"Classes: {listed}{f' and {rest} more' if rest > 0 else ''}.")
    return "\n\n".join(lines)


def _pixel(prepared: Preparation) -> str:
    if prepared.white_guessed:
        unknown = "nothing says which of them is white"
        return f"value − mean) / deviation of the training data's own numbers ({prepared.numbers}; {unknown})"
    return f"pixel × {prepared.white / 255:.6g} − mean) / deviation of pixels from 0 to 255"


def _use(facts: Facts) -> str:
    if facts.exported is None:
        return "## Use\n\n```sh\nresnetboost predict CHECKPOINT IMAGE...\nresnetboost eval CHECKPOINT\n```"
    name, kind = facts.exported
    use = {
        "ONNX": (
            "import onnxruntime\n"
            f'logits = onnxruntime.InferenceSession("{_plain(name)}").run(None, {{"images": images}})[0]'
        ),
        "MINDIR": (
            "import mindspore\n"
            f'network = mindspore.nn.GraphCell(mindspore.load("{_plain(name)}"))\n'
            "logits = network(mindspore.Tensor(images))"
        ),
    }.get(kind, f"# {_plain(name)}: for the Ascend tensor compiler (atc)")
    return (
        f"## Use\n\n`images` is float32 (batch, channels, height, width), normalised as above.\n\n```python\n{use}\n```"
    )


def _versions(facts: Facts) -> str:
    manifest = facts.network.manifest
    found: Mapping[str, str] = manifest.versions if manifest is not None else {}
    listed = ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in found.items())
    written = versions.installed()["resnetboost-trainer"]
    trained = f"Trained with {listed}. " if listed else ""
    return f"## Versions\n\n{trained}Card by resnetboost {written}. SHA-256 of the weights: `{facts.network.sha256}`."


def _job(manifest: Manifest | None) -> str:
    """Return the section with the last stage's complete config."""
    if manifest is None or not manifest.config:
        return ""
    return f"## The last stage's config\n\n```yaml\n{_yaml(manifest.config).replace('`', '?')}```"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(_on_one_line(value), sort_keys=False, allow_unicode=True, width=1000)


def _on_one_line(value: Any) -> Any:
    """Drop None values and put every text on one line: a line of --- would end the front matter."""
    if isinstance(value, dict):
        return {_on_one_line(key): _on_one_line(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_on_one_line(entry) for entry in value]
    return readable(value) if isinstance(value, str) else value


def _dataset(manifest: Manifest) -> str:
    return manifest.dataset.partition(":")[0]


def _validation_split(manifest: Manifest) -> float | None:
    """The share of the training images that was tested with, if the checkpoint says so."""
    dataset = manifest.config.get("dataset")
    share = dataset.get("validationSplit") if isinstance(dataset, dict) else None
    return float(share) if isinstance(share, int | float) and 0 < share < 1 else None


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _plain(name: str) -> str:
    return "".join(letter for letter in readable(name) if letter not in '|`<>[]*\\"')
