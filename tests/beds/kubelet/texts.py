"""Contents of the configuration files of containerd, its network, kubelet and the name server."""

import json
from pathlib import Path
from typing import Any

from beds.cluster.certificates import Pair

NODE = "node-0"
PAUSE_IMAGE = "localhost/resnetboost-pause:1"
SUBNET = "10.88.0.0/16"
GATEWAY = "10.88.0.1"  # the bridge's address: the node's own, and that of its name server
_DOMAIN = "cluster.local"


def containerd(root: Path | str, state: Path | str, socket: Path | str, network: Path | str) -> str:
    """oom_score_adj may not be lowered by everybody who may start containers.

    containerd makes the folders it is told of, and one of its own choice for programs if it is not told.
    """
    return f"""version = 2
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = "{PAUSE_IMAGE}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{network}"
"""


def network() -> str:
    """The bridge that is there already, for all pods."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": SUBNET, "gateway": GATEWAY}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
    routed = {**bridge, "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [routed]})


def kubelet(cgroup: str, ca: Path, server: Pair) -> str:
    """What a test looks at comes soon: a change of a device or of the node is told without delay."""
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(ca)}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "clusterDNS": [GATEWAY],
        "clusterDomain": _DOMAIN,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failSwapOn": False,
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "registerNode": True,
        "resolvConf": "",
        "tlsCertFile": str(server.certificate),
        "tlsPrivateKeyFile": str(server.key),
    }
    return json.dumps(content)


def name_server(kubeconfig: Path) -> str:
    """Names of services and pods, and no others: nobody is asked outside."""
    return f""".:53 {{
    bind {GATEWAY}
    errors
    kubernetes {_DOMAIN} {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""
