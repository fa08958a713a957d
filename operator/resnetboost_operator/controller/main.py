"""`python -m resnetboost_operator`: the operator's command line; what it starts is kopf, which calls `handlers`."""

import asyncio
import logging
import sys
from typing import Any

import click

from resnetboost_operator import __version__
from resnetboost_operator.controller import logs, options, restart
from resnetboost_operator.controller.options import Options
from resnetboost_operator.errors import UserError

logger = logging.getLogger(__name__)

_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "auto_envvar_prefix": options.PREFIX,
}


@click.command(context_settings=_SETTINGS)
@options.parameters
@click.version_option(__version__, prog_name="resnetboost-operator")
def main(**given: Any) -> None:
    """Run the ResNetBoost operator: turn ResNetBoostJobs of a Kubernetes cluster into gangs of training pods.

    The cluster is the one around this process, or the one that $KUBECONFIG (else ~/.kube/config) names.
    It needs the CRD (crds/resnetboostjobs.yaml) and the rights in charts/resnetboost/files/rbac.yaml, and
    waits for both.

    Several operators may run: a lease makes one the leader, the others stand by. SIGTERM or Ctrl-C ends
    it in good order: passes finish, the lease is given up. Jobs go on meanwhile, and the next operator
    takes them up where they are. A second signal ends it at once.

    Every option can be given in the environment: --log-level as RESNETBOOST_OPERATOR_LOG_LEVEL.

    \b
    Exit codes: 0 stopped on request, 1 lease lost or an error that a restart may mend,
                2 or 10 an option or a kubeconfig that cannot work.

    \b
    Examples:
      KUBECONFIG=~/.kube/config python -m resnetboost_operator
      python -m resnetboost_operator --namespace team-a --namespace team-b --listen 127.0.0.1:0
    """
    wanted = options.parsed(**given)
    logs.configure(wanted.log_format, wanted.log_level)
    try:
        asyncio.run(_run(wanted))
    except UserError as error:
        click.echo(f"resnetboost-operator: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # what kopf does not survive: the CRD was deleted, say
        details = logger.isEnabledFor(logging.DEBUG)
        logger.critical("kopf has stopped: %r; leaving, to be started again", error, exc_info=details)
        restart.leave(wanted.start_over)


async def _run(wanted: Options) -> None:
    import kopf

    from resnetboost_operator.controller import handlers  # noqa: F401  registers itself with kopf
    from resnetboost_operator.controller.process import Operator

    await kopf.operator(
        memo=kopf.Memo(operator=await Operator.connected(wanted)),
        standalone=True,
        identity=wanted.identity,  # type: ignore[arg-type]  # its own begins with the user's name, and a uid may have none
        clusterwide=not wanted.namespaces,
        namespaces=wanted.namespaces,
    )
