"""`python -m bench [suite ...]`: measure suites one after another, print each table, merge it into a file in build/.

Without a suite it measures those of SPEED; `accuracy` stands for those of ACCURACY. The picture is drawn at the end.
"""

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from bench import entries, picture

# What `make bench` measures, in 40 minutes on 2 quiet cores.
SPEED = {
    "step": "a resnet20 training step against stock nn.Conv2d",
    "pytorch": "training step and inference of five networks on CPU against PyTorch, and PyTorch in its best setting",
    "mindcv": "training step and inference of resnet20 and resnet18 on CPU against MindCV",
    "scaling": "2 ranks x 1 thread against 1 x 1 and 1 x 2",
    "warmstart": "a restart of a resnet18 rank that finds its graphs compiled, against the first start",
    "start": "`resnetboost run` until its first step with kept graphs, against a first start",
    "checkpoint": "how long training stands still for a checkpoint, with and without a copy in object storage",
    "tracking": "a training step with TensorBoard and MLflow against one without",
    "overhead": "the share of a step outside the compiled graphs",
    "thor": "what THOR adds to a training step and to memory, and its cost model against a measurement",
    "adasum": "Adasum of 1 and 45 MB against an AllReduce",
    "pca": "principal components of 60 snapshots of ResNet-18's size against scikit-learn's, seconds and memory",
    "data": "photographs decoded, cropped and flipped for training, images/s against torchvision's and Pillow's",
    "streaming": "an epoch from object storage, with an empty and a full cache, against local files",
    "ranktables": "from the last annotation of a device plugin until gangs of 16 to 1024 pods know their ranks",
    "scale": "gangs of up to 1000 pods on a real API server against Indexed Jobs",
    "manygangs": "ten gangs of 1000 pods under one operator against one alone; 200 jobs of 5 applied at once",
    "gangs": "200 gangs of 5 pods on devices for 100 pods, under Kubernetes' gang scheduler",
    "restart": "from a failed rank to the next attempt and the next step: in place against new pods",
}
# What training achieves, in epochs and accuracy of whole runs: `make bench-accuracy`.
ACCURACY = {
    "convergence": "epochs and seconds to an accuracy, THOR against the best of an SGD grid",
    "largebatch": "epochs to an accuracy at a large batch, Adasum against averaging",
    "twostage": "accuracy of a run stopped early and finished in its principal subspace against ordinary ones",
    "rollback": "accuracy of runs that diverge and go back, against runs at a well-tuned learning rate",
    "elastic": "a week in which nodes break, in virtual time: steps with minCount against without",
}
SUITES = SPEED | ACCURACY
GROUPS = {"speed": SPEED, "accuracy": ACCURACY}
# Suites that are measured with another, after it.
INCLUDED = {"scale": ("gangs", "manygangs")}
OUTPUT = Path("build/bench.json")
SCALE_OUTPUT = Path("build/bench-scale.json")
# A suite whose result a CI gate reads on its own has a file of its own.
OWN_OUTPUT = dict.fromkeys(("scale", "gangs", "manygangs"), SCALE_OUTPUT)
PICTURE = Path("build/speed.png")


def main() -> None:
    """Run the named suites and draw the picture. A suite that fails does not keep the others from being measured."""
    # A shell's background jobs ignore Ctrl-C, and so would the runs that a suite stops by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seconds, failed = {}, []
    for name in _chosen():
        print(f"bench {name}: {SUITES[name]} ...", flush=True)
        started = time.monotonic()
        try:
            _measure(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        seconds[name] = time.monotonic() - started
        print(f"bench {name}: {seconds[name]:.0f} s", flush=True)
    picture.draw([*entries.read(OUTPUT), *entries.read(SCALE_OUTPUT)], PICTURE)
    print(f"written: {PICTURE}")
    print(f"bench: {sum(seconds.values()):.0f} s:", ", ".join(f"{name} {spent:.0f}" for name, spent in seconds.items()))
    if failed:
        sys.exit(f"bench: failed: {', '.join(failed)}")


def _chosen() -> list[str]:
    text = "\n".join(f"  {name:12} {what}" for name, what in SUITES.items())
    parser = argparse.ArgumentParser("python -m bench", epilog=text, formatter_class=argparse.RawTextHelpFormatter)
    choices = [*SUITES, *GROUPS]
    parser.add_argument("suites", nargs="*", choices=[*choices, []], metavar="SUITE", help="default: speed")
    os.environ.setdefault("GLOG_v", "3")
    named = parser.parse_args().suites or ["speed"]
    suites = [suite for name in named for suite in GROUPS.get(name, (name,))]
    return list(dict.fromkeys(each for suite in suites for each in (suite, *INCLUDED.get(suite, ()))))


def _measure(name: str) -> None:
    """Measure one suite, print its table and merge it into its file."""
    found = importlib.import_module(f"bench.{name}").measure()
    entries.show(found)
    output = OWN_OUTPUT.get(name, OUTPUT)
    entries.merge(found, output)
    print(f"written: {output}")


if __name__ == "__main__":
    main()
