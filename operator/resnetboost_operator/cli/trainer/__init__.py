"""Commands that the trainer executes, in a process of its own: the operator may be installed without it."""
