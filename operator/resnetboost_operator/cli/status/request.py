"""The arguments of `resnetboost status`: which jobs or runs to show, and in which form."""

from typing import Literal

import msgspec

Form = Literal["text", "json", "yaml"]


class StatusRequest(msgspec.Struct, frozen=True):
    """Arguments of `resnetboost status`.

    `target` is a job, a run or '' for all; an empty `namespace` means that of the kubeconfig's context.
    """

    target: str
    namespace: str
    everywhere: bool
    follow: bool
    form: Form
    sweep: str = ""
    """Name of a sweep whose trials are shown; '' for none."""

    @property
    def of_a_cluster(self) -> bool:
        """True if an option applies to jobs in a cluster only."""
        return bool(self.namespace or self.everywhere or self.form != "text")
