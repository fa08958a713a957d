"""Algorithm PCA: training in the principal subspace of weight snapshots (Li et al. 2022, arXiv 2103.11154)."""
