"""Metrics of a rank: Prometheus, /progress, metrics.csv and the log. Changes nothing in the training."""
