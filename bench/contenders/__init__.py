"""Programs that benchmarks run in other processes: ours, and those of the libraries compared with."""
