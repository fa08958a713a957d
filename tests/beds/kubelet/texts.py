"""Contents of the configuration files of containerd, its network, kubelet and the name server."""

import json
from pathlib import Path
from typing import Any

from beds.cluster.certificates import Pair

NODE = "node-0"
PAUSE_IMAGE = "localhost/resnetboost-pause:1"
SUBNET = "10.88.0.0/16"
GATEWAY = "10.88.0.1"  # the bridge's address, which is also the node's and the name server's
_DOMAIN = "cluster.local"


def containerd(root: Path | str, state: Path | str, socket: Path | str, network: Path | str) -> str:
    """containerd's configuration.

    oom_score_adj is restricted because an unprivileged user may not lower it. Every folder is named, because containerd
    would create its default ones on the machine.
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
    """CNI configuration: the existing bridge for all pods."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": SUBNET, "gateway": GATEWAY}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
    routed = {**bridge, "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [routed]})


def kubelet(cgroup: str, ca: Path, server: Pair) -> str:
    """Kubelet's configuration, with short intervals so that tests soon see changes of devices and the node."""
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
    """The name server's configuration: names of services and pods only, no forwarding."""
    return f""".:53 {{
    bind {GATEWAY}
    errors
    kubernetes {_DOMAIN} {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""
