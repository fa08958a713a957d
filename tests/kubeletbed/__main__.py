"""`python -m kubeletbed`: a node in the foreground, to try things out by hand or to kill."""

import signal

from cluster.fixtures import CRD
from kubeletbed.bed import Bed


def main() -> None:
    """Say where it is, and wait for Ctrl-C."""
    try:
        with Bed(crds=[CRD]) as bed:
            print(
                f"{bed.folder} {bed.plane.folder}: export KUBECONFIG={bed.plane.kubeconfig}; Ctrl-C ends it", flush=True
            )
            signal.pause()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
