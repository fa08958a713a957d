"""Training in the principal subspace of a trajectory (Li et al. 2022, arXiv 2103.11154), one concern to a file."""
