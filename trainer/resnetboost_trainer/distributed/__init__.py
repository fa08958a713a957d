"""The gang: joining it, its collectives, its rank table, and sums over its ranks. Knows no networks."""
