"""An operator that begins anew in its own process, so that kubelet's back-off does not leave a cluster without one."""

import subprocess
import sys

from resnetboost_operator.kube.leaving import STABLE_SECONDS, failures_in_a_row

# Fails twice, then ends well; says its process id each time.
TWICE = """
import os
from resnetboost_operator.kube import leaving
from resnetboost_operator.kube.retry import Backoff
leaving.BACKOFF = Backoff(0.0, 0.0)
print(os.getpid(), flush=True)
if os.environ.get("_RESNETBOOST_OPERATOR_FAILURES") != "2":
    leaving.leave(start_over=True)
"""


def test_it_begins_anew_in_the_same_process() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60, check=True)
    first, *others = ended.stdout.split()
    assert others == [first, first]


def test_without_the_option_it_leaves_that_to_others() -> None:
    code = "from resnetboost_operator.kube import leaving; leaving.leave(start_over=False)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 1


def test_what_ran_for_long_fails_for_the_first_time() -> None:
    assert [failures_in_a_row(before, 1.0) for before in ("", "1", "7", "x")] == [1, 2, 8, 1]
    assert failures_in_a_row("7", STABLE_SECONDS) == 1
