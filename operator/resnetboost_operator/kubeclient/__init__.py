"""A client of the Kubernetes API: requests, watches and caches. The controller and the command line share it."""
