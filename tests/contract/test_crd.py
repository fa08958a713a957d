"""The CRD matches the structs, the checker, the examples and the corpus of job files.

tests/corpus/good and bad hold job files, changes/{good,bad} merge patches to good/everything.yaml, or to the good file
that their last line names (`# of: minimal.yaml`). Bad ones start with `# expect: ` and their only problem, in which
{algorithms} stands for the names of all algorithms. They also work with `kubectl`: the API server must accept and
reject the same ones.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from resnetboost_api import aliases, crd, names, wording
from resnetboost_api.optimizers import Adasum, Pca, Thor
from resnetboost_api.stage import Algorithm, DynamicLossScale
from resnetboost_api.status import Progress, Status
from resnetboost_api.structure import Structure
from resnetboost_operator import status
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.volumes import DRIVER_MOUNTS
from resnetboost_operator.validation import cel, jobfile, schema

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
Schema = dict[str, Any]


def fields(node: Any, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field below a schema with its path; [] stands for the items of a list, {} for the values of a map."""
    children = {f"{path}.{name}": child for name, child in node.get("properties", {}).items()}
    if "items" in node:
        children[f"{path}[]"] = node["items"]
    if "additionalProperties" in node:
        children[path + "{}"] = node["additionalProperties"]
    for place, child in children.items():
        yield place.removeprefix("."), child
        yield from fields(child, place)


FIELDS = {path: node for path, node in fields(schema.openapi(), "") if path != "metadata"}
LEAVES = {path: node for path, node in FIELDS.items() if node.get("type") not in ("object", "array")}
PARENTS = {**FIELDS, "": schema.openapi()}

# Free text, whose length must still be bounded.
FREE_TEXT = {
    "metadata.name",  # bounded by rules
    "spec.dataset.trainFolder",
    "spec.dataset.testFolder",
    "spec.stages[].parameterGroups[].parameters",  # a shell pattern of names
    "spec.tracking.callbacks[].options{}",
    "status.stage",
    "status.conditions[].message",
    "status.stages[].name",
    "status.stages[].stoppedEarly.message",
    "status.progress.stage",
    "status.preflight.stage",
    "status.preflight.suspects[].node",
    "status.attempts[].stage",
    "status.rollBacks[].stage",
    "status.attempts[].node",
    "status.attempts[].message",
    "status.excludedNodes[].node",
    "status.progress.stragglers[].node",
    "status.excludedNodes[].reason",
    "status.selector",
}
# Kubernetes validates these two itself.
TYPE_META = {"apiVersion", "kind"}


class TestFields:
    """Each test lists the fields that violate it, so that a failure names them."""

    def test_each_has_a_description_of_one_line(self) -> None:
        texts = {path: node.get("description", "") for path, node in FIELDS.items()}
        assert [path for path, text in texts.items() if not re.fullmatch(r"[A-Z`a-z].*[.)]", text)] == []
        assert [path for path, text in texts.items() if text != " ".join(text.split())] == []

    def test_each_leaf_describes_its_values(self) -> None:
        limits = {"default", "minimum", "maximum", "enum", "pattern", "format"}
        free = {path for path, node in LEAVES.items() if not limits & node.keys() and node.get("type") != "boolean"}
        assert free == FREE_TEXT | TYPE_META

    def test_each_of_the_spec_is_bounded(self) -> None:
        """Without upper bounds, CEL rules exceed the cost limit, and absurd values pass."""
        spec = {path: node for path, node in FIELDS.items() if path.startswith("spec")}
        assert [path for path, node in spec.items() if not is_bounded(node)] == []

    def test_each_default_is_right(self) -> None:
        wrong = {
            path: list(Structure(node).problems(node["default"])) for path, node in FIELDS.items() if "default" in node
        }
        assert {path: problems for path, problems in wrong.items() if problems} == {}

    def test_each_list_says_how_it_merges(self) -> None:
        lists = {path: node for path, node in FIELDS.items() if node.get("type") == "array"}
        keys = {path: set(node.get("x-kubernetes-list-map-keys", ())) for path, node in lists.items()}
        kinds = {path: node.get("x-kubernetes-list-type") for path, node in lists.items()}
        assert kinds == {path: "map" if keys[path] else "atomic" for path in lists}
        assert [path for path, node in lists.items() if not keys[path] <= _always_there(node["items"])] == []

    def test_each_pattern_of_the_spec_has_words_for_it(self) -> None:
        patterns = {path: node for path, node in FIELDS.items() if "pattern" in node and path.startswith("spec")}
        assert [path for path, node in patterns.items() if not node.get("title")] == []

    def test_aliases_point_to_existing_fields(self) -> None:
        labels = {f"metadata.labels['{names.LABEL_QUEUE}']"}
        assert [path for path in aliases.MEANT.values() if path not in {*LEAVES, *labels}] == []

    def test_each_block_that_a_number_stands_for_has_it(self) -> None:
        blocks = {path.rpartition(".")[2]: path for path, node in FIELDS.items() if node.get("type") == "object"}
        assert [name for name, key in aliases.NUMBER_OF.items() if f"{blocks[name]}.{key}" not in LEAVES] == []

    def test_required_fields_have_no_default(self) -> None:
        required = [(path, name) for path, node in PARENTS.items() for name in node.get("required", ())]
        assert [(path, name) for path, name in required if "default" in PARENTS[path]["properties"][name]] == []


def _always_there(items: Schema) -> set[str]:
    """Fields that the items of a list have in any case: a list's keys must be among them, or no API server takes it."""
    return {
        *items.get("required", ()),
        *(name for name, node in items.get("properties", {}).items() if "default" in node),
    }


def is_bounded(node: Schema) -> bool:
    match node.get("type"):
        case "array":
            return "maxItems" in node
        case "object":
            return "maxProperties" in node or "additionalProperties" not in node
        case "integer" | "number":
            return {"minimum", "maximum"} <= node.keys()
        case "boolean":
            return True
    return "maxLength" in node or "enum" in node


# Set by the operator.
TIMES = ("heartbeatTime", "since")


def extremes(kind: Any) -> Any:
    """The smallest and the largest value that msgspec accepts."""
    match kind:
        case msgspec.inspect.Metadata():
            return extremes(kind.type)
        case msgspec.inspect.UnionType():
            return extremes(next(part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType)))
        case msgspec.inspect.StrType():
            return "", "A" * (kind.max_length or 0)
        case msgspec.inspect.LiteralType():
            return kind.values[0], kind.values[-1]
        case msgspec.inspect.VarTupleType():
            each = extremes(kind.item_type)[1]
            return (), tuple(each for _ in range(kind.max_length or 0))
        case msgspec.inspect.StructType():
            fields = {field.encode_name: extremes(field.type) for field in kind.fields}
            return tuple(
                {name: "2026-01-01T00:00:00Z" if name in TIMES else values[end] for name, values in fields.items()}
                for end in (0, 1)
            )
    assert isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType)
    assert kind.ge is not None and kind.le is not None, "without a bound anything goes"
    return kind.ge, kind.le


class TestStructs:
    def test_a_thor_stage_without_settings_has_the_defaults_of_each(self) -> None:
        """The CRD cannot express it: the block has no default, because stages of other algorithms must not have it."""
        filled = schema.defaulted(jobfile.load(CORPUS / "good" / "thor-bare.yaml"))["spec"]["stages"][0]["thor"]
        assert msgspec.convert(filled, Thor) == Thor()

    def test_a_dynamic_loss_scale_without_settings_has_the_defaults_of_each(self) -> None:
        filled = schema.defaulted(jobfile.load(CORPUS / "good" / "dynamic-loss-scale.yaml"))["spec"]["stages"][0]
        assert msgspec.convert(filled["dynamicLossScale"], DynamicLossScale) == DynamicLossScale()

    @pytest.mark.parametrize("algorithm", get_args(Algorithm))
    @pytest.mark.parametrize(
        ("stage", "expected"),
        [
            ({"precision": "Float16"}, DynamicLossScale()),
            ({"precision": "Float16", "lossScale": 128}, None),
            ({"precision": "Float16", "dynamicLossScale": {"initial": 4}}, DynamicLossScale(initial=4)),
            ({"precision": "Float32"}, None),
        ],
        ids=["half", "half with a fixed one", "half with one of its own", "single"],
    )
    def test_a_stage_in_float16_has_a_loss_scale_whatever_its_algorithm(
        self, stage: dict[str, Any], expected: DynamicLossScale | None, algorithm: str
    ) -> None:
        job = jobfile.load(CORPUS / "good" / "minimal.yaml")
        plain = {"name": "plain", "algorithm": "Momentum", "epochs": 40, "localBatchSize": 32, "snapshots": {}}
        job["spec"] |= {"device": {"count": 2}, "checkpoint": {"claimName": "kept"}}
        rate = {"learningRate": {"peak": 0.01}}
        job["spec"]["stages"] = [
            plain,
            {"name": "half", "algorithm": algorithm, "epochs": 1, "localBatchSize": 32, **rate} | stage,
        ]
        assert schema.check(job) == []
        assert parse_job(schema.defaulted(job)).spec.stages[1].dynamic_loss_scale == expected

    def test_an_adasum_stage_without_settings_has_the_defaults_of_each(self) -> None:
        filled = schema.defaulted(jobfile.load(CORPUS / "good" / "adasum-bare.yaml"))["spec"]["stages"][0]["adasum"]
        assert msgspec.convert(filled, Adasum) == Adasum()

    @pytest.mark.parametrize("name", ["pca-bare", "pca-minimal"])
    def test_a_pca_stage_without_settings_has_the_defaults_of_each(self, name: str) -> None:
        filled = schema.defaulted(jobfile.load(CORPUS / "good" / "pca-bare.yaml"))
        assert msgspec.convert(filled["spec"]["stages"][1]["pca"], Pca) == Pca()
        assert parse_job(schema.defaulted(jobfile.load(CORPUS / "good" / f"{name}.yaml"))).spec.stages[1].pca == Pca()

    def test_descriptions_have_the_defaults_by_device_type(self) -> None:
        """The API server sets none of them, so the description is all that a user sees."""
        told = {path: node["description"] for path, node in FIELDS.items() if path.startswith("spec.")}
        for kind in devices.TYPES.values():
            assert kind.image.partition(":")[0] in told["spec.template.image"]
            assert (kind.resource_name or "") in told["spec.device.resourceName"]
        assert devices.RESOURCE_OF_950 in told["spec.device.resourceName"]
        assert devices.SHARED_MEMORY in told["spec.device.sharedMemorySize"]
        assert f"{devices.DEFAULT_CHIP} is taken" in told["spec.device.chip"]
        assert all(path in told["spec.device.driverMounts"] for _, path, _ in DRIVER_MOUNTS)

    def test_users_may_not_mount_the_operators_paths(self) -> None:
        paths = {path for _, path, _ in DRIVER_MOUNTS} | {names.PATH_RANK_TABLE, names.PATH_SHARED_MEMORY}
        volumes = {name for name, _, _ in DRIVER_MOUNTS} | {
            names.VOLUME_RANK_TABLE,
            names.VOLUME_SHARED_MEMORY,
        }
        assert paths == set(re.findall(r"'(/[^']+)'", device_rule("/dev/shm")))
        assert volumes == set(re.findall(r"'([a-z-]+)'", device_rule("ascend-driver")))

    def test_the_rules_take_pcas_default_where_it_is_left_out(self) -> None:
        """CEL rules cannot use a default that the API server does not set."""
        texts = {rule["rule"] for (path, _), rule in every_rule().items() if path == "spec.stages"}
        assumed = {number for text in texts for number in re.findall(r"pca\.components : (\d+)", text)}
        assert assumed == {str(Pca().components)}

    @pytest.mark.parametrize("which", [0, 1], ids=["smallest", "largest"])
    def test_any_progress_of_a_rank_fits_the_status_schema(self, which: int) -> None:
        """A status refused because of a rank's progress would block every other change of the status."""
        info = msgspec.inspect.type_info(Progress)
        assert isinstance(info, msgspec.inspect.StructType)
        claimed = extremes(info)[which]
        progress = msgspec.convert(claimed, Progress)
        assert schema.check_status(status.to_dict(Status(progress=progress))) == []

    def test_names(self) -> None:
        found = crd.definition()["spec"]
        assert f"{found['group']}/{found['versions'][0]['name']}" == names.API_VERSION
        assert found["names"]["kind"] == names.KIND

    def test_columns_show_fields_of_their_type(self) -> None:
        conditions = r'status\.conditions\[\?\(@\.type=="[A-Z][a-z]+"\)\]\.message'
        for column in crd.definition()["spec"]["versions"][0]["additionalPrinterColumns"]:
            path = column["jsonPath"].removeprefix(".")
            if path in FIELDS:
                is_time = FIELDS[path].get("format") == "date-time"
                assert ("date" if is_time else FIELDS[path]["type"]) == column["type"]
            else:
                beside = ("metadata.creationTimestamp", r"metadata.labels.kueue\.x-k8s\.io/queue-name")
                assert path in beside or re.fullmatch(conditions, path), path


def expected(path: Path) -> str:
    """The problem named in the comment at the top of a bad file."""
    lines = path.read_text().splitlines()
    comment = lines[: next(index for index, line in enumerate(lines) if not line.startswith("#"))]
    text = " ".join(line.removeprefix("#").strip() for line in comment).removeprefix("expect: ")
    return text.replace("{algorithms}", wording.wanted({"enum": get_args(Algorithm)}))


def files(folder: str) -> pytest.MarkDecorator:
    paths = sorted((CORPUS / folder).glob("*.yaml"))
    assert paths
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def original(path: Path) -> dict[str, Any]:
    """The job that a change is for."""
    _, named, name = path.read_text().rpartition("# of: ")
    return schema.defaulted(jobfile.load(CORPUS / "good" / (name.strip() if named else "everything.yaml")))


def changed(path: Path) -> Any:
    return merged(original(path), jobfile.load(path))


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, item in patch.items():
        result[name] = merged(result.get(name), item)
    return {name: item for name, item in result.items() if item is not None}


@pytest.mark.slow
class TestCorpus:
    @files("good")
    def test_good_files_are_taken_and_parsed(self, path: Path) -> None:
        obj = jobfile.load(path)
        assert schema.check(obj) == []
        parse_job(schema.defaulted(obj))

    @files("bad")
    def test_bad_files_have_their_expected_problem(self, path: Path) -> None:
        assert [str(problem) for problem in schema.check(jobfile.load(path))] == [expected(path)]

    @files("changes/good")
    def test_good_changes_are_taken(self, path: Path) -> None:
        assert schema.check(changed(path), original(path)) == []

    @files("changes/bad")
    def test_bad_changes_have_their_expected_problem(self, path: Path) -> None:
        assert [str(problem) for problem in schema.check(changed(path), original(path))] == [expected(path)]

    @pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: str(path.stem))
    def test_examples_are_right(self, path: Path) -> None:
        obj = jobfile.load(path)
        assert schema.check(obj) == []
        parse_job(schema.defaulted(obj))

    def test_every_field_of_the_spec_is_given_in_a_good_file(self) -> None:
        specs = [jobfile.load(path)["spec"] for path in (CORPUS / "good").glob("*.yaml")]
        given = {path for spec in specs for path in given_paths(spec, "spec")}
        assert {path for path in FIELDS if path.startswith("spec.")} <= given


def given_paths(value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    yield path
    if isinstance(value, dict):
        for name, item in value.items():
            if "additionalProperties" in FIELDS[path]:
                yield path + "{}"
            else:
                yield from given_paths(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from given_paths(item, path + "[]")


def every_rule() -> dict[tuple[str, str], dict[str, str]]:
    """Each CEL rule by the field it stands at and its text."""
    return {
        (path, rule["rule"]): rule
        for path, node in PARENTS.items()
        for rule in node.get("x-kubernetes-validations", ())
    }


def device_rule(word: str) -> str:
    """The rule for device pods that contains this word."""
    (text,) = (text for path, text in every_rule() if path == "spec" and f"'{word}'" in text)
    return text


def broken_rules() -> dict[tuple[str, str], list[str]]:
    """Rules that some file of the corpus breaks, with the files."""
    objects = [(path, schema.defaulted(jobfile.load(path)), cel.ABSENT) for path in (CORPUS / "bad").glob("*.yaml")]
    objects += [
        (path, schema.defaulted(changed(path)), original(path)) for path in (CORPUS / "changes/bad").glob("*.yaml")
    ]
    found: dict[tuple[str, str], list[str]] = {}
    for path, obj, old in objects:
        known = list(Structure(schema.openapi()).problems({**obj, "metadata": {}}))
        for rule, _ in cel.broken(obj, old, schema.openapi(), known):
            place = re.sub(r"\[\d+\]", "[]", rule.field.removesuffix(rule.place))
            found.setdefault((place.removesuffix("metadata.name"), rule.text), []).append(path.stem)
    return found


class TestRules:
    @pytest.mark.slow
    def test_each_is_broken_by_a_file_of_the_corpus(self) -> None:
        assert every_rule().keys() == broken_rules().keys()

    @pytest.mark.parametrize("rule", every_rule().values(), ids=[text for _, text in every_rule()])
    def test_each_has_one_sentence_with_the_remedy(self, rule: dict[str, str]) -> None:
        message = rule["message"]
        assert re.search(r"[;,] ", message)
        assert not re.search(r"[.\n]$|\n", message)

    def test_use_only_functions_of_both_the_api_server_and_the_checker(self) -> None:
        """Standard CEL, and of Kubernetes' own functions those that `rules` implements, which 1.29 has."""
        texts = [rule[part] for rule in every_rule().values() for part in ("rule", "messageExpression") if part in rule]
        called = {
            name for text in texts for name in re.findall(r"([A-Za-z_]+)\(", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))
        }
        assert called <= {
            "all",
            "compareTo",
            "contains",
            "double",
            "exists",
            "exists_one",
            "filter",
            "has",
            "map",
            "matches",
            "quantity",
            "size",
            "startsWith",
            "string",
        }
