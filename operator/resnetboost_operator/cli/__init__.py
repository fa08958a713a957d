"""The `resnetboost` command line. `main` lists the commands; each one is a module or a folder of its own."""
