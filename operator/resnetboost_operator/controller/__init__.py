"""The controller: watches the cluster, executes plans, and is the only writer. Decisions are in `planning`."""
