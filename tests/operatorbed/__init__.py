"""The real operator as a process, a proxy that can fail it, and a kubelet that does what a test says.

What a test asserts is not here; the control plane is `cluster`.
"""

from operatorbed.account import Account
from operatorbed.kubelet import Kubelet
from operatorbed.process import Operator
from operatorbed.proxy import Proxy
from operatorbed.space import Space

__all__ = ["Account", "Kubelet", "Operator", "Proxy", "Space"]
