"""Process 1 of a rank's container: starts the rank as its child, and starts it again; knows no MindSpore."""
