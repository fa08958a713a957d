"""The algorithms of a stage, one file each; none of them knows about data, ranks or files."""
