"""The Ascend chips that HCCL distinguishes, and the devices that a server of each can have."""

from typing import Literal, get_args

__all__ = ["ALL", "ALLOWED_SETS", "COUNTS_910A", "DEVICE_IDS", "SET_SIZE", "TITLES", "Chip", "crosses_rings"]

Chip = Literal["910A", "910B", "A3", "950"]
ALL: tuple[Chip, ...] = get_args(Chip)

# Names of the products in HCCL's documents.
TITLES: dict[Chip, str] = {
    "910A": "Atlas training series",
    "910B": "Atlas A2",
    "A3": "Atlas A3",
    "950": "Ascend 950",
}

# Device ids that HCCL takes: hccl_common.h HCCL_AISERVER_DEVICE_NUM, device_capacity.cc GetMaxDevNum.
DEVICE_IDS: dict[Chip, int] = {"910A": 8, "910B": 16, "A3": 16, "950": 65}

COUNTS_910A = (1, 2, 4, 8)
SET_SIZE = 4
# topoinfo_parse.cc HCCL_AISERVER_VAILD_4P_RANKS: any other four devices of a 910A server are refused.
ALLOWED_SETS = frozenset(
    [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 4, 5), (0, 2, 4, 6), (0, 3, 4, 7), (1, 2, 5, 6), (1, 3, 5, 7), (2, 3, 6, 7)]
)
_RING = 4


def crosses_rings(devices: tuple[int, ...]) -> bool:
    """Whether devices of one 910A server lie in both of its HCCS rings, 0 to 3 and 4 to 7."""
    return len({device // _RING for device in devices}) > 1
