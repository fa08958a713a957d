"""`python -m resnetboost_operator`: the operator's command line. Starts kopf, which calls `handlers`."""

import asyncio
import logging
import sys
from typing import Any

import click

from resnetboost_operator import __version__
from resnetboost_operator.controller import logs, options, reexec
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
    """Run the ResNetBoost operator, which runs ResNetBoostJobs as gangs of training pods.

    It uses the cluster it runs in, or the one in $KUBECONFIG (default: ~/.kube/config). It needs the CRD
    (crds/resnetboostjobs.yaml) and the rights in charts/resnetboost/files/rbac.yaml, with --kueue and
    --gang-scheduling those in rbac-kueue.yaml and rbac-gangs.yaml beside it, and waits for them.

    Several operators may run: a Lease elects the leader, the others stand by. SIGTERM or Ctrl-C shuts down
    gracefully: reconcile passes finish and the Lease is released. Jobs continue, and the next operator takes
    over. A second signal exits at once.

    Every option can be set in the environment, for example --log-level as RESNETBOOST_OPERATOR_LOG_LEVEL.

    \b
    Exit codes: 0 stopped on request; 1 Lease lost, or an error that a restart may fix;
                2 or 10 invalid option or kubeconfig.

    \b
    Examples:
      KUBECONFIG=~/.kube/config python -m resnetboost_operator
      python -m resnetboost_operator --namespace team-a --namespace team-b --listen 127.0.0.1:0
    """
    chosen = options.parsed(**given)
    logs.configure(chosen.log_format, chosen.log_level)
    try:
        asyncio.run(_run(chosen))
    except UserError as error:
        click.echo(f"resnetboost-operator: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # kopf ends, for example, when the CRD is deleted
        details = logger.isEnabledFor(logging.DEBUG)
        logger.critical("kopf has stopped: %r; exiting, to be restarted", error, exc_info=details)
        reexec.leave(chosen.start_over)


async def _run(chosen: Options) -> None:
    import kopf

    from resnetboost_operator.controller import handlers  # noqa: F401  registers itself with kopf
    from resnetboost_operator.controller.process import Operator

    await kopf.operator(
        memo=kopf.Memo(operator=await Operator.connected(chosen)),
        standalone=True,
        identity=chosen.identity,  # type: ignore[arg-type]  # its own begins with the user's name, and a uid may have none
        clusterwide=not chosen.namespaces,
        namespaces=chosen.namespaces,
    )
