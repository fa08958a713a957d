"""python -m support.trunksteps KIND...: compare a step of these networks with MindSpore's operators in a new process.

oneDNN chooses its instructions once in a process. Prints each kind and whether it ran as one operator.
"""

import sys

from resnetboost_trainer.engine import device
from support import familygradients


def main() -> None:
    """Exit with the differences, if there are any."""
    device.prepare()
    for kind in sys.argv[1:]:
        network = familygradients.network(kind)
        found, expected = familygradients.once(network, "GRAPH"), familygradients.slow(kind)
        wrong = familygradients.wrong(found, expected, familygradients.BOUND)
        if wrong:
            sys.exit(f"{kind}: {wrong}")
        print(f"{kind}:{network.fuses_layers}")


if __name__ == "__main__":
    main()
