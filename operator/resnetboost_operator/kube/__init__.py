"""The operator's shell around the plan: it watches a Kubernetes API server, carries plans out and decides nothing."""
