"""`python -m bench [suite ...]`: measure suites one after another, print each table, merge it into a file in build/."""

import argparse
import importlib
import os
from pathlib import Path

from bench import entries

SUITES = {
    "step": "a resnet20 training step against stock nn.Conv2d",
    "pytorch": "training step and inference of resnet20 and resnet18 on CPU against PyTorch",
    "mindcv": "training step and inference of resnet20 and resnet18 on CPU against MindCV",
    "scaling": "2 ranks x 1 thread against 1 x 1 and 1 x 2",
    "warmstart": "a restart of a resnet18 rank that finds its graphs compiled, against the first start",
    "checkpoint": "how long training stands still for a checkpoint",
    "overhead": "the share of a step outside the compiled graphs",
    "thor": "what THOR adds to a training step and to memory, and its cost model against a measurement",
    "convergence": "epochs and seconds to an accuracy, THOR against the best of an SGD grid",
    "adasum": "Adasum of 1 and 45 MB against an AllReduce; epochs to an accuracy at a large batch against averaging",
    "pca": "principal components of 60 snapshots of ResNet-18's size against scikit-learn's, seconds and memory",
    "twostage": "accuracy of a run stopped early and finished in its principal subspace against ordinary ones",
    "data": "photographs decoded, cropped and flipped for training, images/s against torchvision's and Pillow's",
    "rollback": "accuracy of runs that diverge and go back, against runs at a well-tuned learning rate",
    "ranktables": "from the last annotation of a device plugin until gangs of 16 to 1024 pods know their ranks",
    "scale": "gangs of up to 1000 pods on a real API server against Indexed Jobs",
    "manygangs": "ten gangs of 1000 pods under one operator against one alone; 200 jobs of 5 applied at once",
    "restart": "from a failed rank to the next attempt and the next step: in place against new pods",
    "elastic": "a week in which nodes break, in virtual time: steps with minCount against without",
    "gangs": "200 gangs of 5 pods on devices for 100 pods, under Kubernetes' gang scheduler",
}
# Suites that are measured with another, after it.
INCLUDED = {"scale": ("gangs", "manygangs"), "restart": ("rollback",)}
OUTPUT = Path("build/bench.json")
# A suite whose result a CI gate reads on its own has a file of its own.
OWN_OUTPUT = dict.fromkeys(("scale", "gangs", "manygangs"), Path("build/bench-scale.json"))


def main() -> None:
    """Run the named suites, or all of them. Results measured before a failure are kept."""
    text = "\n".join(f"  {name:12} {what}" for name, what in SUITES.items())
    parser = argparse.ArgumentParser("python -m bench", epilog=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="SUITE", help="default: all")
    os.environ.setdefault("GLOG_v", "3")
    chosen = parser.parse_args().suites or SUITES
    for name in dict.fromkeys(each for suite in chosen for each in (suite, *INCLUDED.get(suite, ()))):
        print(f"bench {name}: {SUITES[name]} ...", flush=True)
        found = importlib.import_module(f"bench.{name}").measure()
        entries.show(found)
        output = OWN_OUTPUT.get(name, OUTPUT)
        entries.merge(found, output)
        print(f"written: {output}")


if __name__ == "__main__":
    main()
