"""Object storage: addresses, requests and files fetched from there. Knows nothing of checkpoints and images."""
