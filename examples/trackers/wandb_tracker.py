"""A tracker of one's own, for Weights & Biases: docs/tracking.md says how a job uses it."""

from collections.abc import Sequence
from pathlib import Path

import wandb

from resnetboost_trainer.tracking import Outcome, Point, Run, Tracker


class Wandb(Tracker):
    """One run per job. `options` of the job: project, entity. WANDB_API_KEY comes from the environment."""

    def start(self, run: Run) -> None:
        self._stage = run.stage
        self._run = wandb.init(
            project=self.options.get("project", "resnetboost"),
            entity=self.options.get("entity"),
            name=run.job,
            id=run.uid,  # the same after a restart and in later stages ...
            resume="allow",  # ... which go on with the same run
            config=dict(run.parameters),
            dir=run.folder,
        )
        self._run.define_metric(f"{run.stage}/*", step_metric=f"{run.stage}/step")

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            values = {f"{self._stage}/{name}": value for name, value in point.values.items()}
            self._run.log({f"{self._stage}/step": point.step, **values})

    def save(self, name: str, path: Path) -> None:
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def end(self, outcome: Outcome) -> None:
        self._run.summary[f"{self._stage}/outcome"] = outcome.name
        self._run.finish(exit_code=0 if outcome.name == "Succeeded" else 1)
