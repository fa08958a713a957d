"""Policy `ExcludeNode`: restart the gang as `Restart` does, without the node of the rank that failed."""

from resnetboost_operator.planning.faults.policies.restart import Restart


class ExcludeNode(Restart):
    """Restart the gang while the budget lasts, on other nodes. An error that follows it there ends the job."""

    excludes_node = True
