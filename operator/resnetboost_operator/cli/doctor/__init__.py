"""`resnetboost doctor`: examines this machine (by the trainer, in a process of its own) or a cluster."""
