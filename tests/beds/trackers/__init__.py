"""A real MLflow server and TensorBoard's own reader, from a virtual environment of their own.

MLflow's server brings a hundred packages, which nobody but these tests needs: requirements.lock beside this file pins
them. Write it anew with `uv pip compile` as `make lock` does.
"""

from beds.trackers.eventfiles import scalars
from beds.trackers.mlflowserver import MLflow
from beds.trackers.packages import unavailable

__all__ = ["MLflow", "scalars", "unavailable"]
