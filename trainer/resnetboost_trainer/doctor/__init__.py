"""Checks of this machine for `doctor`: one file per subject, listed in `registry`. They read, and change nothing."""
