"""Test beds: the real programs (Kubernetes, kubelet, the operator, Prometheus) that tests run against."""
