"""Trackers of experiments: where rank 0 sends metrics and files beside metrics.csv. Changes nothing in the training.

A new tracker is a file with a subclass of `Tracker`, and a line in `registry`. One of your own needs neither:
`tracking.callbacks` of a job names any subclass that the trainer can import.
"""

from resnetboost_trainer.tracking.tracker import Outcome, Point, Rejected, Run, Tracker

__all__ = ["Outcome", "Point", "Rejected", "Run", "Tracker"]
