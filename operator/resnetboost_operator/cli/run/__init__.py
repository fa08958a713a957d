"""`resnetboost run`: trains a job on this machine and shows its progress."""
