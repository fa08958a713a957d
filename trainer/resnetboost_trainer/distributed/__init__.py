"""Process group of the ranks: rendezvous, collectives, rank table, gradient reduction. Knows no networks."""
