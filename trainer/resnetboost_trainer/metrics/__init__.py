"""What a rank reports: Prometheus, /progress, metrics.csv and the log. Changes nothing."""
