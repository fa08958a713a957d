"""The real operator as a process, a proxy that injects failures, and a kubelet under the test's control.

The control plane is in `beds.cluster`; assertions are in the tests.
"""

from beds.operator.kubelet import Kubelet
from beds.operator.namespace import Space
from beds.operator.process import Operator
from beds.operator.proxy import Proxy
from beds.operator.service_account import Account

__all__ = ["Account", "Kubelet", "Operator", "Proxy", "Space"]
