"""Client of the Kubernetes API: requests, watches and caches, shared by the controller and the command line."""
