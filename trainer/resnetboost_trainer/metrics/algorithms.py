"""What only one algorithm has to tell of a step, to Prometheus and as columns of metrics.csv; it decides nothing."""

import math
from typing import Any

from resnetboost_trainer.distributed.adasum.adaptive_sum import Summed
from resnetboost_trainer.metrics.prometheus import DECISIONS, Metrics
from resnetboost_trainer.optim.pca.descent import Searched
from resnetboost_trainer.optim.thor.curvature import Update

Told = Update | Summed | Searched | None
Row = dict[str, float | None]


def observe(metrics: Metrics, told: Told, compiled: bool) -> None:
    """To Prometheus. Times of a step that compiled are no sample of anything."""
    if told is not None:
        _OBSERVERS[type(told)](metrics, told, compiled)


def columns(told: Told) -> Row:
    """For metrics.csv."""
    return {} if told is None else _COLUMNS[type(told)](told)


def _updated(metrics: Metrics, update: Update, compiled: bool) -> None:
    if not compiled:
        metrics.thor_update_seconds.observe(update.seconds)
    metrics.thor_damping.set(update.damping)
    for decision in DECISIONS:
        metrics.thor_layers[decision].set(getattr(update, decision))
    for decision, count in metrics.thor_decisions.items():
        count.inc(getattr(update, decision))


def _update_columns(update: Update) -> Row:
    row = {"damping": update.damping, "thor_update_seconds": update.seconds}
    return row | {f"layers_{decision}": getattr(update, decision) for decision in DECISIONS}


def _summed(metrics: Metrics, summed: Summed, compiled: bool) -> None:
    metrics.adasum_cosine.set(summed.cosine)
    metrics.adasum_cosine_min.set(summed.cosine_min)
    metrics.adasum_gain.set(summed.gain)
    for level, seconds in summed.seconds.items():
        if not compiled:
            metrics.adasum_level(level, seconds)


def _summed_columns(summed: Summed) -> Row:
    row: Row = {"adasum_gain": summed.gain, "adasum_seconds": sum(summed.seconds.values())}
    if not math.isnan(summed.cosine):
        row |= {"adasum_cosine": summed.cosine, "adasum_cosine_min": summed.cosine_min}
    return row


def _searched(metrics: Metrics, searched: Searched, compiled: bool) -> None:
    if not compiled:
        metrics.pca_seconds.observe(searched.seconds)
    metrics.pca_explained_variance.set(searched.explained)
    metrics.pca_step_length.set(searched.length)
    metrics.pca_gradient_share.set(searched.share)
    metrics.pca_evaluations.inc(searched.evaluations)
    metrics.pca_steps[searched.outcome].inc()


def _searched_columns(searched: Searched) -> Row:
    return {
        "pca_explained_variance": searched.explained,
        "pca_step_length": searched.length,
        "pca_evaluations": searched.evaluations,
        "pca_gradient_share": searched.share,
        "pca_seconds": searched.seconds,
    }


_OBSERVERS: dict[type, Any] = {Update: _updated, Summed: _summed, Searched: _searched}
_COLUMNS: dict[type, Any] = {Update: _update_columns, Summed: _summed_columns, Searched: _searched_columns}
