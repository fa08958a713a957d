"""What benchmarks run in other processes: our side, and the peers it is compared with."""
