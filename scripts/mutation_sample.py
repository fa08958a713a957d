#!/usr/bin/env python3
"""Mutation score of the deciding code: change one expression at a time and see whether the unit tests notice.

`make mutation` tries a fixed sample of each area in AREAS; `mutation_sample.py --help` lists the options. A mutant is
identified by its function, the statement and the expression, not by its file or line, and the sample is drawn by the
hash of that: `--same-as FILE` tries an earlier run's mutants again after modules were moved or renamed.
"""

import argparse
import ast
import copy
import difflib
import hashlib
import importlib
import importlib.abc
import importlib.util
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEED = "ResNetBoost"
KEYS = ("area", "scope", "kind", "statement", "original", "replacement", "nth")  # a mutant's identity


@dataclass(frozen=True)
class Area:
    """Modules, as globs, and the tests that must notice a change in them: the quick ones first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    count: int = 60
    libraries: tuple[str, ...] = ()  # imported once, before the first fork


def _files(form: str, names: str) -> tuple[str, ...]:
    return tuple(form.format(name) for name in names.split())


_OPERATOR = "operator/resnetboost_operator/{}.py"
_TRAINER = "trainer/resnetboost_trainer/{}.py"
_UNIT, _INTEGRATION = "tests/unit/test_{}.py", "tests/integration/test_{}.py"
AREAS = {
    "planning": Area(
        (
            *_files(
                _OPERATOR, "planning/* planning/elastic/* planning/faults/* planning/faults/policies/* observed/failure"
            ),
            "api/resnetboost_api/failures.py",
        ),
        _files(_UNIT, "plan plan_on_kubernetes plan_of_rank_tables failure_policies job_metrics plan_properties")
        + _files(_UNIT, "queue queue_properties queue_topology admissions gang_placement obsolete_groups")
        + _files(_UNIT, "failure_rules goodput node_exclusion node_taints plan_of_stragglers preflight_plan")
        + _files(_UNIT, "restart_in_place roll_back_plans plan_of_elastic_gangs"),
    ),
    "launcher": Area(
        (
            *_files(_TRAINER, "launcher/state launcher/gang launcher/launcher launcher/leading launcher/following"),
            "api/resnetboost_api/connection.py",
        ),
        _files(_UNIT, "launcher_state launcher_gang launcher_link") + _files(_INTEGRATION, "launcher"),
        count=20,
    ),
    "scheduling": Area(
        _files(_OPERATOR, "scheduling/* scheduling/kueue/*"),
        (
            *_files(_UNIT, "gang_schedulers gang_placement queue queue_topology queue_properties operator_queue"),
            *("tests/unit/test_admissions.py", "tests/golden/test_manifests.py"),
        ),
        count=30,
    ),
    "ranktable/check": Area(
        _files(_OPERATOR, "ranktable/check/* ranktable/tables ranktable/chips"),
        _files(_UNIT, "ranktable_rules ranktable_verdicts ranktable_hostile ranktable_command ranktable_assembly"),
    ),
    "optim/kfac": Area(
        _files(_TRAINER, "optim/thor/blocks optim/thor/cost optim/thor/inverse")
        + _files(_TRAINER, "optim/thor/assignment optim/thor/trace_rule"),
        _files(_UNIT, "thor_blocks thor_cost thor_inverse thor_assignment thor_trace"),
        count=18,
    ),
    "optim/subspace": Area(
        _files(_TRAINER, "optim/pca/gram optim/pca/quasinewton optim/pca/solver"),
        _files(_UNIT, "pca_quasinewton pca_solver pca_gram"),
        count=14,
        libraries=("scipy.linalg", "mindspore"),
    ),
    "optim/adasum": Area(
        _files(_TRAINER, "distributed/adasum/adaptive_sum distributed/adasum/host")
        + _files(_TRAINER, "distributed/adasum/layout distributed/adasum/topology"),
        _files(_UNIT, "adasum_topology adasum_host"),
        count=14,
    ),
    "optim/first-order": Area(
        _files(_TRAINER, "optim/clip optim/lars optim/sgd optim/norms optim/schedule optim/grad_scaler"),
        _files(_UNIT, "schedule loss_scale") + _files(_INTEGRATION, "momentum first_order"),
        count=14,
        libraries=("mindspore",),
    ),
}

_FLIPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BOUNDARIES: dict[type[ast.AST], type[ast.AST]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_ARITHMETIC: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
# What is no decision: types, texts, and patterns, which take no other expression.
_SKIPPED = (ast.JoinedStr, ast.Match, ast.Import, ast.ImportFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Site:
    """An expression that can be changed, and its change; without `path` and `line` it is the mutant's identity."""

    area: str
    scope: str
    kind: str
    statement: str
    original: str
    replacement: str
    nth: int
    path: str = field(compare=False)
    line: int = field(compare=False)
    span: tuple[int, int] = field(compare=False, repr=False)  # bytes of the file

    @property
    def rank(self) -> str:
        """Place in the order in which mutants are drawn."""
        return hashlib.sha256("|".join((SEED, *map(str, self.key))).encode()).hexdigest()

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity, as results have it."""
        return tuple(getattr(self, key) for key in KEYS)


def sites(area: str) -> list[Site]:
    """Every mutant of an area, in the order in which they are drawn."""
    found: list[Site] = []
    for pattern in AREAS[area].modules:
        paths = sorted(ROOT.glob(pattern))
        if not paths:
            raise SystemExit(f"{area}: no file matches {pattern}; correct AREAS in {Path(__file__).name}")
        for path in paths:
            found += _sites_of_file(area, path)
    seen: Counter[Site] = Counter()
    numbered = []
    for site in found:
        numbered.append(Site(**{**vars(site), "nth": seen[site]}))
        seen[site] += 1
    return sorted(numbered, key=lambda site: site.rank)


def _sites_of_file(area: str, path: Path) -> Iterator[Site]:
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def visit(node: ast.AST, scope: str, statement: str) -> Iterator[Site]:
        if isinstance(node, _SKIPPED):
            return
        if isinstance(node, _SCOPES):
            scope = f"{scope}.{node.name}".lstrip(".")
        if isinstance(node, ast.stmt):
            statement = ast.unparse(node).partition("\n")[0] if not isinstance(node, _SCOPES) else f"def {node.name}"
        for kind, replacement in _changes(node):
            assert isinstance(node, ast.stmt | ast.expr) and node.end_lineno and node.end_col_offset is not None
            span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
            name = str(path.relative_to(ROOT))
            yield Site(area, scope, kind, statement, ast.unparse(node), replacement, 0, name, node.lineno, span)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or (
                name == "keywords" and isinstance(node, ast.ClassDef)
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, scope, statement)

    yield from visit(ast.parse(source), "", "")


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, new text) of each change of this node itself."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for kind, table in (("comparison", _FLIPS), ("boundary", _BOUNDARIES)):
                if type(operator) in table:
                    changed = copy.deepcopy(node)
                    changed.ops[index] = table[type(operator)]()  # type: ignore[call-overload]
                    yield kind, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        swapped = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)  # type: ignore[arg-type]
        yield "arithmetic", f"({ast.unparse(swapped)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", f"({node.value + 1!r})"
        yield "constant", f"({node.value - 1!r})"
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return", "return None"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def same(earlier: list[dict[str, Any]], area: str) -> tuple[list[tuple[Site, float]], list[dict[str, Any]]]:
    """The sites of an earlier run's mutants with the likeness of each, and the mutants that are gone.

    A renamed function or variable leaves a mutant of the same kind in a statement much like the one before.
    """
    now = sites(area)
    wanted = [mutant for mutant in earlier if mutant["area"] == area]
    exact = {site.key: site for site in now}
    found: list[tuple[Site, float]] = []
    renamed, gone = [], []
    for mutant in wanted:
        site = exact.get(tuple(mutant[key] for key in KEYS))
        if site is None:
            renamed.append(mutant)
        else:
            found.append((site, 1.0))
    taken = {site for site, _ in found}
    for mutant in renamed:
        likely = [site for site in now if site.kind == mutant["kind"] and site not in taken]
        best = max(likely, key=lambda site: _likeness(site, mutant), default=None)
        if best is None or _likeness(best, mutant) < 0.7:
            gone.append(mutant)
        else:
            taken.add(best)
            found.append((best, _likeness(best, mutant)))
    return found, gone


def _likeness(site: Site, mutant: dict[str, Any]) -> float:
    def ratio(key: str) -> float:
        return difflib.SequenceMatcher(None, str(getattr(site, key)), mutant[key], autojunk=False).ratio()

    texts = (ratio("scope") + 2 * ratio("statement") + 2 * ratio("original") + 2 * ratio("replacement")) / 7
    return texts if site.nth == mutant["nth"] else texts - 0.01


class _Mutated(importlib.abc.MetaPathFinder):
    """Imports one module from another file; a file, since MindSpore compiles graphs from their source."""

    def __init__(self, site: Site, folder: Path) -> None:
        source, (start, end) = (ROOT / site.path).read_bytes(), site.span
        self.module = ".".join(Path(site.path).with_suffix("").parts[1:])
        self.file = folder / Path(site.path).name
        self.file.write_bytes(source[:start] + site.replacement.encode() + source[end:])

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.file)


class _FirstFailure:
    """Plugin of pytest that writes down which test failed first."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.file.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.file.write_text(f"{report.nodeid} (import)")


def _run_tests(area: Area, site: Site | None, folder: Path, cpu_seconds: int) -> None:
    """In the forked process: run pytest with that mutant. Ends the process."""
    import pytest

    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if site is not None:
        sys.meta_path.insert(0, _Mutated(site, folder))
    options = "-x -q --no-header --tb=short -p no:cacheprovider --hypothesis-profile=mutation --hypothesis-seed=0"
    arguments = [
        *options.split(),
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-m",
        "not long and not chaos",
        *area.tests,
    ]
    code = 3
    try:
        code = int(pytest.main(arguments, plugins=[_FirstFailure(folder / "failed")]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code)


def attempt(area: Area, site: Site | None, cpu_seconds: int) -> tuple[str, str, float]:
    """What became of a mutant (killed, survived or timeout), the test that noticed, and CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            _run_tests(area, site, folder, cpu_seconds)
        status = _wait(child, 10 * cpu_seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        failed = (folder / "failed").read_text() if (folder / "failed").exists() else ""
        code = os.waitstatus_to_exitcode(status)
        if site is None and code != 0:
            raise SystemExit(f"the tests fail without any change:\n{(folder / 'output').read_text()[-4000:]}")
        if code < 0:
            return "timeout", f"signal {-code}", seconds
        return "survived" if code == 0 else "killed", failed or ("" if code == 0 else f"exit {code}"), seconds


def _wait(child: int, seconds: float) -> int:
    """Wait status of the process, which is killed when it does not end in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _warm_up(area: Area) -> None:
    """Import what does not change, so that each fork has it; nothing of ours, which a mutant may be part of."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("pytest", "hypothesis", "hypothesis.strategies", "numpy", "msgspec", "yaml", *area.libraries):
        importlib.import_module(name)
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a counterexample need not be small
    hypothesis.settings.register_profile(
        "mutation", database=None, deadline=None, phases=phases, suppress_health_check=list(hypothesis.HealthCheck)
    )


def run(name: str, drawn: list[tuple[Site, float]], results: list[dict[str, Any]], out: Path) -> None:
    """Try those mutants of an area; results are written after each."""
    area = AREAS[name]
    _warm_up(area)
    _, _, seconds = attempt(area, None, 600)
    limit = int(4 * seconds) + 20
    print(f"{name}: {len(drawn)} mutants; the tests take {seconds:.1f} s of CPU", flush=True)
    for site, likeness in drawn:
        fate, noticed, seconds = attempt(area, site, limit)
        identity = {key: value for key, value in asdict(site).items() if key != "span"}
        results.append(
            identity | {"fate": fate, "test": noticed, "cpu_seconds": round(seconds, 1), "likeness": round(likeness, 2)}
        )
        out.write_text(json.dumps(results, indent=1) + "\n")
        where = f"{site.path.rpartition('/')[2]}:{site.line} {site.scope}"
        print(f"  {fate:8} {where}: {site.original} -> {site.replacement}  [{noticed}]", flush=True)


def summary(results: list[dict[str, Any]]) -> str:
    """A line per area: killed of tried."""
    lines = []
    for area in dict.fromkeys(mutant["area"] for mutant in results):
        fates = [mutant["fate"] for mutant in results if mutant["area"] == area]
        killed = len(fates) - fates.count("survived")
        lines.append(f"{area:20} {killed:3} of {len(fates):3} killed  {100 * killed / len(fates):5.1f} %")
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"one or more of: {', '.join(AREAS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation.json", help="results (%(default)s)")
    parser.add_argument("--count", type=int, help="mutants per area, instead of the area's own number")
    parser.add_argument("--same-as", type=Path, metavar="FILE", help="try the mutants of that earlier --out again")
    parser.add_argument("--resume", action="store_true", help="keep what --out has, try only the rest")
    parser.add_argument("--list", action="store_true", help="list the mutants, run no tests")
    options = parser.parse_args()
    if unknown := set(options.areas) - set(AREAS):
        parser.error(f"no such area: {', '.join(sorted(unknown))}; there are: {', '.join(AREAS)}")
    os.chdir(ROOT)
    options.out = options.out.absolute()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.out.read_text()) if options.resume and options.out.exists() else []
    done = {tuple(mutant[key] for key in KEYS) for mutant in results}
    for name in options.areas or AREAS:
        if options.same_as:
            drawn, gone = same(json.loads(options.same_as.read_text()), name)
            for mutant in gone:
                print(f"  gone     {mutant['path']}:{mutant['line']} {mutant['scope']}: {mutant['original']}")
        else:
            drawn = [(site, 1.0) for site in sites(name)[: options.count or AREAS[name].count]]
        drawn = [(site, likeness) for site, likeness in drawn if site.key not in done]
        if options.list:
            for site, likeness in drawn:
                print(f"{likeness:4.2f} {site.path}:{site.line} {site.scope}: {site.original} -> {site.replacement}")
        elif drawn:
            run(name, drawn, results, options.out)
    print(summary(results))


if __name__ == "__main__":
    main()
