"""MindSpore's compile level with `jitLevel` and without; checked in a new process, because it cannot be reset."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
from mindspore import context
from mindspore._c_expression import ms_ctx_param
from resnetboost_trainer.engine import device

levels = []
for level in (None, "O0", "O1"):
    device.prepare("CPU", level)
    levels.append(context._context().get_param(ms_ctx_param.jit_level))
print(json.dumps(levels))
"""


@pytest.mark.slow
def test_mindspore_compiles_at_the_jobs_level_or_its_default() -> None:
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True).stdout
    assert json.loads(output.splitlines()[-1]) == ["", "O0", "O1"]
