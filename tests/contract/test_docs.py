"""Job snippets in the docs are valid and have the documented effect."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from resnetboost_api import names
from resnetboost_api.job import Spec
from resnetboost_operator.cli import job_file
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.manifests.trainer_config import trainer_config as trainer_config_manifest
from resnetboost_trainer.cli import commands, export
from resnetboost_trainer.config import Config
from resnetboost_trainer.optim import schedule

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
THOR, ADASUM = DOCS / "thor.md", DOCS / "adasum.md"
STEPS_PER_EPOCH = 5004  # ImageNet at a global batch of 256

KIND = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "metadata": {"name": "job"}}
STAGE = {"name": "base", "algorithm": "Momentum", "epochs": 6, "localBatchSize": 32}
REST = {"model": {"name": "resnet50", "numClasses": 1001}, "dataset": {"name": "npz", "path": "/data/x.npz"}}
FIELDS = {field.encode_name for field in msgspec.structs.fields(Spec)}


def blocks(document: Path) -> list[Any]:
    texts = re.findall(r"^```yaml\n(.*?)^```", document.read_text(), re.S | re.M)
    return [block for text in texts for block in yaml.safe_load_all(text)]


def read(spec: dict[str, Any], folder: Path) -> Job:
    """Read a ResNet-50 job with the given fields of the spec. Raises JobError."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(KIND | {"spec": REST | {"stages": [STAGE]} | spec}))
    return parse_job(job_file.load(path))


def config_of(job: Job) -> Config:
    return msgspec.convert(trainer_config_manifest(job, job.spec.stages[0], 0), Config)


def trainer_config(stage: dict[str, Any], folder: Path, **device: Any) -> Config:
    """The trainer's config of a stage, through defaulting, parsing and writing."""
    return config_of(read({"stages": [stage]} | ({"device": device} if device else {}), folder))


def shown(block: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a spec that a YAML block shows, if any: a job, a spec, or fields of a spec or a stage."""
    if block.get("kind", "ResNetBoostJob") == "ResNetBoostJob" and "spec" in block:
        return dict(block["spec"])
    if "algorithm" in block:
        return {"stages": [{"name": "base"} | block]}
    return block if block.keys() <= FIELDS else None


def snippets() -> Iterator[Any]:
    for document in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        for place, block in enumerate(blocks(document)):
            if (spec := shown(block)) is not None:
                yield pytest.param(spec, id=f"{document.stem}-{place}")


@pytest.mark.parametrize("spec", snippets())
def test_yaml_snippets_are_valid_within_a_job(spec: dict[str, Any], tmp_path: Path) -> None:
    read(spec, tmp_path)


def test_the_pod_that_exports_has_the_rights_and_the_claim_of_the_pods_that_trained(tmp_path: Path) -> None:
    (pod,) = (block["spec"] for block in blocks(DOCS / "after.md"))
    job = read({"checkpoint": {"claimName": "digits"}}, tmp_path)
    rank_0 = pod_manifest(job, job.spec.stages[0], 0, 0)["spec"]
    for field in ("securityContext", "automountServiceAccountToken", "restartPolicy"):
        assert pod[field] == rank_0[field]
    (container,), (trained,) = pod["containers"], rank_0["containers"]
    assert [container[field] for field in ("image", "securityContext")] == [
        trained["image"],
        trained["securityContext"],
    ]
    assert container["volumeMounts"][0] in trained["volumeMounts"]
    assert pod["volumes"][0] in rank_0["volumes"]


def test_the_pod_that_exports_runs_a_command_of_the_trainer() -> None:
    (pod,) = (block["spec"] for block in blocks(DOCS / "after.md"))
    *program, command, source, target = pod["containers"][0]["command"]
    assert (tuple(program), command) == (names.TRAINER_COMMAND, "export")
    assert command in commands.ALL
    assert export.parser().parse_args([source, target]).target.suffix in export.FORMATS


def test_the_shortest_stage_has_the_defaults_of_the_table(tmp_path: Path) -> None:
    config = trainer_config(blocks(THOR)[0]["stages"][0], tmp_path)
    assert config.thor is not None
    assert (config.learning_rate.peak, config.thor.frequency, config.thor.block_size) == (0.02, 10, 128)
    damping, rule = config.thor.damping, config.thor.trace_rule
    assert (damping.initial, damping.decay, damping.decay_epochs, damping.split) == (0.1, 0.5, 10, "Pi")
    assert (rule.update_above, rule.stop_below, rule.smoothing, config.thor.clip_norm) == (0.3, 0, 0.8, None)


@pytest.mark.parametrize(
    ("epoch", "rate", "damping"),
    [(0, 0.0580, 0.0300), (10, 0.0247, 0.0150), (20, 0.00838, 0.00751), (40, 4.67e-5, 0.00188)],
)
def test_the_recipe_of_mindspores_tutorial_has_its_schedules(
    epoch: int, rate: float, damping: float, tmp_path: Path
) -> None:
    config = trainer_config({"name": "thor"} | blocks(THOR)[1], tmp_path)
    step = epoch * STEPS_PER_EPOCH
    assert schedule.learning_rate(config, step, STEPS_PER_EPOCH) == pytest.approx(rate, rel=0.005)
    assert schedule.damping(config, step, STEPS_PER_EPOCH) == pytest.approx(damping, rel=0.005)


def test_the_shortest_stage_of_adasum_has_the_defaults_of_the_table(tmp_path: Path) -> None:
    shortest = blocks(ADASUM)[0]
    config = trainer_config(shortest["stages"][0], tmp_path, **shortest["device"])
    assert config.adasum is not None
    assert (config.adasum.reduce, config.adasum.ranks_per_node) == ("Delta", 2)


def test_the_recipe_of_adasum_is_that_of_mindspores_tutorial(tmp_path: Path) -> None:
    recipe = blocks(ADASUM)[1]
    config = trainer_config({"name": "adasum"} | recipe["stages"][0], tmp_path, **recipe["device"])
    assert config.adasum is not None
    assert (config.adasum.reduce, config.adasum.ranks_per_node) == ("Delta", 8)
    rates = [schedule.learning_rate(config, step, 312) for step in (5 * 312, 95 * 156, 90 * 312 - 3)]
    assert rates == pytest.approx([0.8, 0.4, 0], abs=0.01)


def test_a_network_that_is_fine_tuned_as_the_document_says(tmp_path: Path) -> None:
    (spec,) = (found["spec"] for found in blocks(DOCS / "weights.md"))
    config = config_of(read(spec, tmp_path))
    assert config.model.weights is not None
    assert (config.model.weights.head, config.model.freeze) == ("New", ("stem", "layer1", "layer2"))
    assert config.model.init.zero_gamma


def test_the_network_policy_that_is_shown_lets_operator_and_ranks_reach_the_ranks_of_a_job(tmp_path: Path) -> None:
    (policy,) = (block for block in blocks(DOCS / "operator.md") if block.get("kind") == "NetworkPolicy")
    job = read({"device": {"type": "CPU", "count": 2}}, tmp_path)
    labels = pod_manifest(job, job.spec.stages[0], 0, 1)["metadata"]["labels"]
    operator, ranks = policy["spec"]["ingress"]
    selected = [policy["spec"]["podSelector"]["matchLabels"], ranks["from"][0]["podSelector"]["matchLabels"]]
    assert all(found and found.items() <= labels.items() for found in selected)
    ports = (names.PORT_METRICS, names.PORT_LAUNCHER)
    assert operator["ports"] == [{"port": port, "protocol": "TCP"} for port in ports]
    assert "ports" not in ranks


def test_the_queue_that_is_shown_is_the_examples_and_has_room_for_it() -> None:
    found = {block["kind"]: block for block in blocks(DOCS / "queueing.md") if "kind" in block}
    example = parse_job(job_file.load(ROOT / "examples" / "queue-kueue.yaml"))
    shown_job, queue, cluster = (found[kind] for kind in (names.KIND, "LocalQueue", "ClusterQueue"))
    assert shown_job["metadata"]["labels"][names.LABEL_QUEUE] == queue["metadata"]["name"] == example.queue
    assert names.LABEL_QUEUE_PRIORITY in shown_job["metadata"]["labels"]
    assert shown_job["metadata"]["namespace"] == queue["metadata"]["namespace"]
    assert queue["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    (group,) = cluster["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == found["ResourceFlavor"]["metadata"]["name"]
    requested = set(example.spec.template.resources.requests)
    assert requested == set(group["coveredResources"]) == {resource["name"] for resource in flavor["resources"]}
    assert requested == set(shown_job["spec"]["template"]["resources"]["requests"])


@pytest.mark.parametrize("scheduler", ["kubernetes", "volcano", "coscheduling", "yunikorn"])
def test_the_gangs_that_are_shown_are_those_of_the_examples(scheduler: str) -> None:
    shown_ones = [block["scheduling"] for block in blocks(DOCS / "queueing.md") if "scheduling" in block]
    example = yaml.safe_load((ROOT / "examples" / f"gang-{scheduler}.yaml").read_text())
    assert example["spec"]["scheduling"] in shown_ones


def test_every_document_that_names_an_image_has_the_version_that_is_set_everywhere() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "set_version.py"))
    documents = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "charts").rglob("*.md")]
    naming = {found for found in documents if re.search(script["_IMAGE"], found.read_text())}
    assert {str(found.relative_to(ROOT)) for found in naming} <= script["PLACES"].keys()
