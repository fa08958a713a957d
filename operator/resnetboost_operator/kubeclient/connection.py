"""Address and credentials of the API server, from the pod's service account or a kubeconfig. Sends no request."""

import os
import urllib.request
from asyncio import sslproto
from pathlib import Path

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from resnetboost_operator import __version__
from resnetboost_operator.errors import UserError

USER_AGENT = f"resnetboost-operator/{__version__}"
# Every request in flight and every watch has a connection; writers limit themselves.
MOST_CONNECTIONS = 512
# As long as Go's clients: the next gang needs no new TLS handshakes.
IDLE_SECONDS = 90.0
# Of each TLS connection, and of each read from one; asyncio's own 256 KiB are 16 of the largest TLS records.
BUFFER_BYTES = 32 * 1024
_KUBECONFIG = "KUBECONFIG"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_DEFAULT_KUBECONFIG = Path("~/.kube/config")
# What the loader raises for a file that is not a kubeconfig.
_NO_KUBECONFIG = (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError)
_REMEDY = f"set {_KUBECONFIG}, or run in a pod with a service account"


async def connect(user_agent: str = USER_AGENT) -> ApiClient:
    """Connect to the cluster this process runs in, or to the one in $KUBECONFIG (default: ~/.kube/config)."""
    configuration = Configuration()
    await log_in(configuration)
    client = ApiClient(configuration)
    client.user_agent = user_agent
    return client


def _behind_proxy() -> bool:
    """True if the environment names a proxy. aiohttp would check for each of a thousand pods again, in a thread."""
    return any(scheme != "no" for scheme in urllib.request.getproxies_environment())


async def log_in(configuration: Configuration) -> None:
    """Read address and credentials; again after a token expired. Raises `UserError` if there are none."""
    try:
        if _in_cluster():
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(_kubeconfig(), client_configuration=configuration, persist_config=False)
    except (config.ConfigException, OSError) as error:
        raise UserError(f"no API server is configured: {error}; {_REMEDY}") from error
    except _NO_KUBECONFIG as error:
        raise _misread(error) from error


def namespace() -> str:
    """The namespace of the kubeconfig's context; '' if it names none, or in a pod. Raises as `log_in` does."""
    if _in_cluster():
        return ""
    try:
        _, current = config.list_kube_config_contexts(_kubeconfig())
        return str(current["context"].get("namespace") or "")
    except (config.ConfigException, OSError, *_NO_KUBECONFIG) as error:
        raise _misread(error) from error


def _misread(error: Exception) -> UserError:
    return UserError(f"{_kubeconfig()} is no kubeconfig: {' '.join(str(error).split())}; correct it, or {_REMEDY}")


def is_configured() -> bool:
    """True if a cluster is configured; without one, `resnetboost status` shows local runs only."""
    return _KUBECONFIG in os.environ or _IN_CLUSTER in os.environ or _DEFAULT_KUBECONFIG.expanduser().is_file()


def _in_cluster() -> bool:
    return _KUBECONFIG not in os.environ and _IN_CLUSTER in os.environ


def _kubeconfig() -> str:
    """The path or paths of the kubeconfig, like kubectl's."""
    paths = os.environ.get(_KUBECONFIG) or str(_DEFAULT_KUBECONFIG.expanduser())
    if not any(Path(path).is_file() for path in paths.split(os.pathsep)):
        raise UserError(f"there is no kubeconfig {paths}; {_REMEDY}")
    return paths


def session(client: ApiClient) -> aiohttp.ClientSession:
    """A session for requests that bring their own credentials (`authorization`)."""
    sslproto.SSLProtocol.max_size = BUFFER_BYTES  # for all connections of the process; asyncio has no option for it
    connector = aiohttp.TCPConnector(
        limit=MOST_CONNECTIONS, ssl=client.rest_client.ssl_context, keepalive_timeout=IDLE_SECONDS
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": client.user_agent, "Accept": "application/json"},
        trust_env=_behind_proxy(),
    )


async def authorization(client: ApiClient) -> dict[str, str]:
    """The header with the current token; none for a client with a certificate."""
    token = await client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    return {"Authorization": token} if token else {}


async def kopf_session(client: ApiClient, trace: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    """A session for kopf with the current credentials."""
    headers = {"User-Agent": USER_AGENT, **await authorization(client)}
    connector = aiohttp.TCPConnector(limit=0, ssl=client.rest_client.ssl_context)
    return aiohttp.ClientSession(connector=connector, headers=headers, trace_configs=[trace], trust_env=_behind_proxy())
