"""The real operator as a process, a proxy that can fail it, and a kubelet that does what a test says.

What a test asserts is not here; the control plane is `cluster`.
"""

from beds.operator.kubelet import Kubelet
from beds.operator.namespace import Space
from beds.operator.process import Operator
from beds.operator.proxy import Proxy
from beds.operator.service_account import Account

__all__ = ["Account", "Kubelet", "Operator", "Proxy", "Space"]
