"""The `resnetboost` command line. Each command imports what it needs when it is called."""
