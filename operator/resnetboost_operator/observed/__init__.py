"""What the operator observes: pods, nodes and failures, read from their Kubernetes form once. No decisions."""
