"""The trials of a sweep by Optuna, in a journal that is whole after a kill at any moment.

Akiba et al. 2019, "Optuna: A Next-generation Hyperparameter Optimization Framework"; values come from its
tree-structured Parzen estimator (Bergstra et al. 2011), and trials below the median are ended early.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resnetboost_operator.cli.sweep.space import Categorical, Float, Parameter, Space, Value
from resnetboost_operator.cli.view.trial_table import TrialRow
from resnetboost_operator.errors import UserError

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

NAME = "sweep"
# Trials whose end is known before one is ended early, and before values are drawn by what earlier trials gave.
LEAST_COMPLETE, DRAWN_AT_RANDOM = 4, 8
_ENOUGH = 16  # after 8 trials the shares named the wrong parameter
_NOTE, _PRUNING = "note", "pruning"
_SEED_STEP = 1_000_003


class Trial(msgspec.Struct, frozen=True):
    """One trial that is to be run, or to go on. `pruning` is why it was to end early, '' if it was not."""

    number: int
    values: Mapping[str, Value]
    pruning: str = ""


class Study:
    """All trials of a sweep. Every change is on disk when a method returns. One process at a time may open it."""

    def __init__(self, file: Path, space: Space, seed: int, *, prunes: bool) -> None:
        """Open the journal or begin one. Raises `UserError` for a damaged one."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._seed, self._optuna = space, seed, optuna
        self._distributions = {path: _distribution(found) for path, found in space.parameters.items()}
        median = optuna.pruners.MedianPruner(n_startup_trials=LEAST_COMPLETE)
        try:
            _drop_torn_line(file)
            self._study: optuna.Study = optuna.create_study(
                storage=_storage(file),
                study_name=NAME,
                load_if_exists=True,
                direction="maximize" if space.maximizes else "minimize",
                pruner=median if prunes else optuna.pruners.NopPruner(),
            )
            self._frozen()
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise UserError(f"{file} is damaged ({error}); begin another sweep with --fresh") from None

    def suggest_first(self, values: Mapping[str, Value]) -> None:
        """Make these the values of the first trial, if there is none yet."""
        if not self._frozen():
            self._study.enqueue_trial(dict(values))

    def _frozen(self) -> "list[optuna.trial.FrozenTrial]":
        return self._study.get_trials(deepcopy=False)

    @property
    def count(self) -> int:
        """Trials that were begun."""
        waiting = self._optuna.trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self._frozen())

    @property
    def is_sound(self) -> bool:
        """True if a trial gave a value, or was ended for one: the job runs, whatever fails later."""
        states = self._optuna.trial.TrialState
        return any(trial.state in (states.COMPLETE, states.PRUNED) for trial in self._frozen())

    def unfinished(self) -> list[Trial]:
        """Trials that were begun and did not end, because their process did. Values that it did not draw are drawn."""
        running = [trial for trial in self._frozen() if trial.state == self._optuna.trial.TrialState.RUNNING]
        return [self._trial(self._again(trial)) for trial in running]

    def _again(self, frozen: "optuna.trial.FrozenTrial") -> "optuna.trial.Trial":
        self._draw_for(frozen.number)
        trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
        for path, distribution in self._distributions.items():
            _suggest(trial, path, distribution)
        return trial

    def next(self) -> Trial:
        """Begin another trial."""
        self._draw_for(self.count)
        return self._trial(self._study.ask(self._distributions))

    def _draw_for(self, number: int) -> None:
        """Draw the trial's values from its own seed: a sweep that goes on would draw those of its begin again."""
        seed = (self._seed * _SEED_STEP + number) % 2**32
        self._study.sampler = self._optuna.samplers.TPESampler(n_startup_trials=DRAWN_AT_RANDOM, seed=seed)

    def _trial(self, found: "optuna.trial.Trial") -> Trial:
        values = {path: found.params[path] for path in self._distributions}
        return Trial(found.number, values, str(found.user_attrs.get(_PRUNING, "")))

    def report(self, trial: Trial, epoch: int, value: float) -> bool:
        """Report the metric after so many epochs; return whether the trial is to end here. Each epoch counts once."""
        frozen = self._frozen()[trial.number]
        found = self._optuna.trial.Trial(self._study, frozen._trial_id)
        if epoch not in frozen.intermediate_values:
            found.report(value, epoch)
        return bool(found.should_prune())

    def pruning(self, trial: Trial) -> str:
        """Why the trial is to end early; '' if it is not."""
        return str(self._frozen()[trial.number].user_attrs.get(_PRUNING, ""))

    def begin_to_prune(self, trial: Trial, why: str) -> None:
        """Record that the trial is to end early, before anything follows from it."""
        self._set(trial, _PRUNING, why)

    def complete(self, trial: Trial, value: float) -> None:
        """Record the trial's result."""
        self._study.tell(trial.number, value)

    def prune(self, trial: Trial, why: str) -> None:
        """Record that the trial was ended early, or cannot be good."""
        self._set(trial, _NOTE, why)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, trial: Trial, why: str) -> None:
        """Record that the trial gave nothing that would say whether its values are good."""
        self._set(trial, _NOTE, why)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def _set(self, trial: Trial, name: str, text: str) -> None:
        frozen = self._frozen()[trial.number]
        self._optuna.trial.Trial(self._study, frozen._trial_id).set_user_attr(name, text)

    def rows(self) -> tuple[TrialRow, ...]:
        """All trials that were begun, as tables show them; an early end has its last value."""
        waiting = self._optuna.trial.TrialState.WAITING
        return tuple(_row(trial) for trial in self._frozen() if trial.state != waiting)

    def best(self) -> TrialRow | None:
        """The complete trial with the best value; of equal ones the first."""
        complete = [row for row in self.rows() if row.state == "Complete" and row.value is not None]
        sign = 1 if self._space.maximizes else -1
        return max(complete, key=lambda row: sign * (row.value or 0.0), default=None)

    def importances(self) -> dict[str, float]:
        """The parameters' shares in what made trials good (PED-ANOVA, Watanabe et al. 2023), the largest first.

        Empty with too few complete trials, whose shares would be luck, and of a single parameter.
        """
        complete = [row for row in self.rows() if row.state == "Complete"]
        if len(complete) < _ENOUGH or len(self._distributions) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(self._optuna.importance.get_param_importances(self._study, evaluator=evaluator))
        except (ValueError, RuntimeError):  # all trials are equally good
            return {}

    def histories(self) -> Iterator[tuple[TrialRow, list[tuple[int, float]]]]:
        """Each trial with its values by epoch."""
        for row in self.rows():
            yield row, sorted(self._frozen()[row.number].intermediate_values.items())


_STATES = {"COMPLETE": "Complete", "PRUNED": "Pruned", "FAIL": "Failed", "RUNNING": "Running"}


def _row(trial: "optuna.trial.FrozenTrial") -> TrialRow:
    value = trial.value if trial.state.name == "COMPLETE" else None
    if value is None and trial.intermediate_values and trial.state.name != "FAIL":
        value = trial.intermediate_values[max(trial.intermediate_values)]
    state = _STATES.get(trial.state.name, trial.state.name.title())
    return TrialRow(trial.number, state, value, dict(trial.params), str(trial.user_attrs.get(_NOTE, "")))


def _distribution(parameter: Parameter) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Categorical):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    return IntDistribution(parameter.low, parameter.last, log=parameter.log, step=parameter.step)


def _suggest(trial: "optuna.trial.Trial", path: str, distribution: Any) -> None:
    """The value that the trial has, else a new one."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(path, distribution.choices)
    elif isinstance(distribution, FloatDistribution):
        trial.suggest_float(path, distribution.low, distribution.high, log=distribution.log)
    else:
        trial.suggest_int(path, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _storage(file: Path) -> "optuna.storages.BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class FolderLock(JournalFileSymlinkLock):
        """Nothing: the sweep's folder is locked. Optuna's own lock would outlive a kill for half a minute."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            pass

    return JournalStorage(JournalFileBackend(str(file), FolderLock(str(file))))


def _drop_torn_line(file: Path) -> None:
    """Cut off what a killed process wrote of a line: the next one would be appended to it. Raises ValueError."""
    with contextlib.suppress(FileNotFoundError), file.open("r+b") as opened:
        text = opened.read()
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            json.loads(line)
        if len(whole) < len(text):
            opened.truncate(len(whole))
            os.fsync(opened.fileno())
