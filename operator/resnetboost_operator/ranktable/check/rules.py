"""The rules for rank tables: name, HCCL's error, source and remedy of each.

Parser means HCOMM, the newest public one; function names are those of its topoinfo_ranktable*.cc, config.cc,
topoinfo_parse.cc and rank_table_info/*. Document means HCCL's cluster_info_config/rank_table_config_*.md. What the
parser refuses and what the document forbids is an error; what the document forbids but the parser takes on purpose,
and what is only advised against, is a warning.
"""

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]


class Rule(msgspec.Struct, frozen=True):
    """A rule. `hccl` is the error HCCL reports, or a description of what it does instead."""

    name: str
    hccl: str
    source: str
    remedy: str
    severity: Severity = "error"

    @property
    def stops(self) -> bool:
        """True if HCCL itself rejects the table; what only its documents forbid fails later or never."""
        return self.severity == "error" and not self.hccl.startswith(_UNCHECKED)


_UNCHECKED = "does not check it"
_FIELD = "parser GetJsonArrayMemberProperty"
_FROM_HCCN = "take it from /etc/hccn.conf (address_N) or `hccn_tool -i N -ip -g`"

# The file as a whole.
JSON = Rule("valid JSON", "EI0004", "parser LoadString", "write it as one JSON object, without comments")
UNREAD = Rule(
    "size of the file",
    "does not check it up to 1 GiB",
    "limit of this check",
    "leave out white space and fields of others",
)
SIZE = Rule(
    "at most 40 MiB", "EI0004 HCCL_E_PARA", "parser HcomCheckRankTable", "leave out white space and fields of others"
)
FILE_NAME = Rule(
    "name of the file",
    "HCCL_E_INTERNAL",
    "parser LoadFile, CheckFilePath",
    "name it hccl.json where HCCL reads it",
    "warning",
)
STATUS = Rule("status", "EI0017", "parser RefreshStatus", 'write "status": "completed"')
NOT_COMPLETED = Rule(
    "status completed",
    "HCCL_E_TIMEOUT after 1800 s of waiting",
    "parser LoadFile",
    'write "completed" when the table is whole',
)
VERSION = Rule(
    "version", "EI0014 HCCL_E_NOT_SUPPORT", "parser CfgGetClusterInfo", "use 1.0, 1.2 or 2.0, as the chip has it"
)
VERSION_MISSING = Rule(
    "version present",
    "EI0017 HCCL_E_NOT_FOUND group_count: it takes the table for template 2",
    "parser TopoinfoRanktableStandard::GetCloudHcomInfo",
    'add "version": "1.0"',
)
VERSION_TYPE = Rule("version", "EI0017 HCCL_E_PARA", "parser GetRanktableVersion", "write it as a string, such as 1.0")
VERSION_CHIP = Rule(
    "version of the chip", _UNCHECKED, "documents rank_table_config_*.md", "use the chip's own version", "warning"
)
HETEROGENEOUS = Rule(
    "version 1.1",
    "reads it with a parser of its own, which this check does not follow",
    "parser TopoinfoRanktableHeterog",
    "use 1.0 for hosts with devices of one kind",
)
OLD_TEMPLATE = Rule(
    "template 2",
    "accepts it",
    "document rank_table_config_910.md, template 2",
    "write new tables with version 1.0",
    "warning",
)

# Fields.
MISSING = Rule("required field", "EI0017 HCCL_E_NOT_FOUND", _FIELD, "add the field")
NOT_OBJECT = Rule(
    "entries are objects", "EI0017 HCCL_E_NOT_FOUND", _FIELD, "write an object with the fields of its kind"
)
MISSING_LIST = Rule("required list", "HCCL_E_NOT_FOUND", "parser GetJsonProperty", "add the list")
EMPTY_LIST = Rule("list not empty", "HCCL_E_PARA", "parser GetJsonProperty", "add its entries")
NOT_TEXT = Rule("values are strings", 'EI0017 HCCL_E_PARA "is not string!"', _FIELD, "put the value in quotes")
NOT_NUMBER = Rule("decimal number", "HCCL_E_PARA", "parser SalStrToULong", "write decimal digits, below 4294967296")
LOOSE_NUMBER = Rule("plain number", "accepts it", "parser SalStrToULong", "write decimal digits only", "warning")

# Servers.
SERVER_COUNT = Rule("server_count", "EI0014 HCCL_E_PARA", "parser GetServerList", "count the entries of server_list")
SERVER_COUNT_MISSING = Rule(
    "server_count present",
    "accepts it, and counts server_list",
    "document rank_table_config_910.md, _a2.md",
    "add server_count",
    "warning",
)
SERVER_ID_EMPTY = Rule("server_id not empty", "HCCL_E_PARA", "parser GetSingleServer", "give the server an id")
SERVER_ID_LONG = Rule("server_id length", "HCCL_E_PARA", "parser GetSingleServer", "use at most 64 bytes")
SERVER_ID_REPEATED = Rule(
    "server_id unique",
    'EI0014 HCCL_E_PARA "IP" is repeate',
    "parser CheckUniqueAndInsertPool",
    "give each server an id of its own, and put all devices of one server into one entry",
)
HOST_IP = Rule(
    "host_ip", "EI0014 HCCL_E_PARA", "parser ConvertIpAddress", "write an IPv4 or IPv6 address, or leave it out"
)
HOST_FAMILY = Rule(
    "one family of host_ip", "EI0014 HCCL_E_PARA", "parser CheckRankIpFamily", "use IPv4 or IPv6 throughout"
)
HOST_NIC = Rule(
    "host_ip everywhere",
    "HCCL_E_PARA",
    "parser CheckNicDeployConsistence",
    "give each server a host_ip, or each device a device_ip and no net_position",
)
HOST_NETWORK = Rule(
    "device_ip with several servers",
    "accepts it: the ranks talk over the network cards of the hosts",
    "documents rank_table_config_910.md, _a3.md, against parser DetectNicDepoly",
    "add it, and the ranks use the devices' own cards",
    "warning",
)
HOST_NOTHING = Rule(
    "host_ip is an address",
    "takes it for no host_ip",
    "parser HcclIpAddress::IsInvalid",
    "write the host's address, or leave it out",
    "warning",
)
ADDRESS_ODD = Rule(
    "address of a network card",
    "accepts it, and fails when it connects",
    "documents rank_table_config_*.md: a regular IPv4 or IPv6 address",
    "write the real address of the card",
    "warning",
)
CARD_WORD = Rule(
    "net_position and net_protocol",
    "takes it as if it were not there",
    "parser GetSingleNicInfo",
    "write device or host, rdma or tcp, or leave it out",
    "warning",
)
NICS_TRIMMED = Rule(
    "a device_ip for each device",
    "accepts it: devices without one talk to other servers over those that have one",
    "document rank_table_config_910.md, against parser CheckAndAssignNicInfo",
    "add the missing ones: fewer network cards carry less",
    "warning",
)
NICS_FEWER = Rule(
    "a device_ip for each device",
    "accepts it, but spares network cards only where each server has eight devices",
    "document rank_table_config_910.md, against parser GetCloudDevList",
    _FROM_HCCN,
    "warning",
)
NICS_UNEQUAL = Rule(
    "network cards of the same devices on each server",
    "HCCL_E_PARA",
    "parser CheckAndAssignNicInfo",
    "give a device_ip to each device, or on each server to the same 1, 2 or 4 of the eight",
)

# Devices.
DEVICE_ID_RANGE = Rule("device_id range", "HCCL_E_PARA", "parser GetSingleDevice", "use the N of /dev/davinciN")
DEVICE_ID_REPEATED = Rule(
    "device_id unique on its server",
    'EI0014 HCCL_E_PARA "is unique"',
    "parser CheckInterServerDeviceId",
    "list each device of a server once",
)
DEVICE_IP_MISSING = Rule(
    "device_ip with several servers",
    'EI0014 HCCL_E_PARA "a valid IP address"',
    "parser GetSingleDeviceIp",
    _FROM_HCCN,
)
DEVICE_IP_REQUIRED = Rule(
    "device_ip with several servers",
    _UNCHECKED,
    "documents rank_table_config_910.md, _a2.md, _a3.md",
    _FROM_HCCN,
)
DEVICE_IP_ADVISED = Rule(
    "device_ip on one server",
    "accepts it",
    "document rank_table_config_910.md, against parser GetSingleDeviceIp",
    "add it: the document requires it on a 910A",
    "warning",
)
DEVICE_IP = Rule(
    "device_ip valid",
    'EI0014 HCCL_E_PARA "a valid IP address"',
    "parser CheckUniquePara",
    "write the real address of the device's network card",
)
DEVICE_IP_REPEATED = Rule(
    "device_ip unique",
    'EI0014 HCCL_E_PARA "IP" is repeate',
    "parser CheckUniqueAndInsertPool",
    "each device has an address of its own",
)
DEVICE_IP_SAME = Rule(
    "device_ip unique however written",
    _UNCHECKED,
    "documents rank_table_config_*.md",
    "each device has an address of its own",
)
DEVICE_IP_COUNT = Rule(
    "same number of device_ip", "HCCL_E_PARA", "parser GetDeviceList", "give each device as many addresses as the first"
)
DEVICE_FAMILY = Rule(
    "one family of device_ip",
    "EI0001 HCCL_E_PARA RankIpFamily",
    "parser CheckRankIpFamily",
    "use IPv4 or IPv6 throughout",
)
PORT = Rule("port range", "HCCL_E_PARA", "parser GetSingleDevicePort", "use a port from 1024 to 65535")
PORT_RESERVED = Rule(
    "port not reserved", "accepts it", "documents rank_table_config_a2.md, _a3.md", "use a port from 1024", "warning"
)
HOST_PORT_SHARED = Rule(
    "host_port unique on its server",
    "accepts it",
    "document rank_table_config_a3.md",
    "give each device of a server a host_port of its own",
    "warning",
)
BACKUP_IP = Rule(
    "backup_device_ip",
    'EI0014 HCCL_E_PARA "a valid IP address", with operator retry',
    "parser GetSingleBackupDeviceIp",
    "write the address of the other die of the same NPU, or leave it out",
)
BACKUP_IP_REPEATED = Rule(
    "backup_device_ip unique",
    'EI0014 HCCL_E_PARA "IP" is repeate, with operator retry',
    "parser GetSingleBackupDeviceIp",
    "each device backs up one other",
)
BACKUP_SELF = Rule(
    "backup is another device",
    'HCCL_E_PARA "do not use self ip as backup ip", with operator retry',
    "parser VerifyBackupDeviceIpAndPort",
    "name the other die of the same NPU",
)
BACKUP_NPU = Rule(
    "backup is the other die of the NPU",
    'HCCL_E_PARA "is not sio link", with operator retry',
    "parser VerifyBackupDeviceIpAndPort",
    "name the other die of the same NPU: devices 0 and 1, 2 and 3, and so on",
)
BACKUP_SERVER = Rule(
    "backup is on the same server",
    "does not check it: it compares device ids only",
    "document rank_table_config_a3.md, backup_device_ip",
    "name the other die of the same NPU",
)
BACKUP_PORT = Rule(
    "backup_device_port differs",
    "HCCL_E_PARA, with operator retry",
    "parser VerifyBackupDeviceIpAndPort",
    "use another port than that card's device_port",
)

# Ranks.
RANK_ID = Rule(
    "rank_id", 'EI0014 HCCL_E_PARA "is a non-negative integer"', "parser GetSingleDevice", "write decimal digits"
)
RANKS = Rule(
    "ranks 0 to N-1",
    'EI0014 HCCL_E_PARA "is less than the communication size N and must be unique"',
    "parser CheckRankListInfo",
    "number the devices from 0, each number once",
)
INTERLEAVED = Rule(
    "ranks of a server are neighbours",
    _UNCHECKED,
    "documents rank_table_config_910.md, _a2.md, _a3.md, rank_id",
    "number all devices of a server before those of the next",
)
SERVER_ORDER = Rule(
    "ranks follow server_id",
    "accepts it",
    "MindSpore's document on rank tables",
    "number the servers in the dictionary order of their server_id",
    "warning",
)
EQUAL_COUNTS = Rule(
    "as many devices on each server",
    'EI0014 HCCL_E_PARA "number of devices under each server node is the same"',
    "parser CheckDeviceNumValid",
    "use as many devices on each server (checked on a 910A only)",
)

# Which devices of a server.
COUNT_910A = Rule(
    "1, 2, 4 or 8 devices of a 910A server",
    'EI0014 HCCL_E_PARA "to be 1, 2 or 4, or a multiple of 8"',
    "parser CheckDevCount",
    "use 1, 2, 4 or 8 of them",
)
RING_910A = Rule(
    "one HCCS ring of a 910A server",
    _UNCHECKED,
    "document (Atlas training series)",
    "take both from 0 to 3 or both from 4 to 7",
)
SET_910A = Rule(
    "four devices of a 910A server",
    'EI0014 HCCL_E_PARA "Device Id of server Id"',
    "parser CheckServerInnerRankInfo",
    "take 0 to 3 or 4 to 7",
)
SET_910A_CROSSING = Rule(
    "one HCCS ring of a 910A server",
    "accepts it",
    "document (Atlas training series), against parser CheckServerInnerRankInfo",
    "take 0 to 3 or 4 to 7: between the rings traffic is slower",
    "warning",
)
COUNT_910B = Rule(
    "the same 1 to 8 devices on each 910B server",
    "accepts it",
    "document (Atlas A2), against parser CheckDeviceNumValid",
    "use as many devices on each server, at most 8",
    "warning",
)
COUNT_A3 = Rule(
    "whole NPUs of an A3 server",
    "accepts it",
    "document rank_table_config_a3.md: an NPU has two devices; Volcano's plugin gives out even numbers",
    "use both devices of an NPU",
    "warning",
)

# Super pods of an A3 (version 1.2).
SUPER_DEVICE_ID = Rule(
    "super_device_id",
    'EI0014 HCCL_E_PARA "a valid non-negative integer"',
    "parser GetSingleSuperDeviceId",
    "take the SDID from `npu-smi info -t spod-info -i ID -c CHIP`, or leave it out",
)
SUPER_DEVICE_MISSING = Rule(
    "super_device_id in a super pod", "HCCL_E_PARA", "parser CheckSuperPodInfo", "give each device its super_device_id"
)
SUPER_DEVICE_REPEATED = Rule(
    "super_device_id unique in its super pod",
    'HCCL_E_PARA "is already exist"',
    "parser CheckSuperPodInfo",
    "each device of a super pod has an id of its own",
)
SERVER_MODE = Rule(
    "super_pod_list",
    "accepts it in AI server mode: traffic between servers leaves the super pod's network",
    "document rank_table_config_a3.md",
    "add super_pod_list and super_device_id",
    "warning",
)
SUPER_POD_ID = Rule(
    "super_pod_id", 'EI0014 "a valid non-empty string"', "parser GetSingleSuperPod", "give the super pod an id"
)
SUPER_POD_LONG = Rule("super_pod_id length", "HCCL_E_PARA", "parser CheckUniquePara", "use at most 127 bytes")
SUPER_POD_REPEATED = Rule(
    "super_pod_id unique",
    'EI0014 HCCL_E_PARA "IP" is repeate',
    "parser CheckUniqueAndInsertPool",
    "put all servers of a super pod into one entry",
)
SUPER_POD_SERVER = Rule(
    "servers of a super pod exist",
    "EI0014 HCCL_E_NOT_FOUND",
    "parser GetSingleSuperPodSever",
    "name a server_id of server_list",
)
SUPER_POD_TWICE = Rule(
    "a server is in one super pod",
    _UNCHECKED,
    "document rank_table_config_a3.md",
    "name each server once",
)
SUPER_POD_WITHOUT = Rule(
    "each server is in a super pod", "HCCL_E_PARA", "parser CheckSuperPodInfo", "name the server in super_pod_list"
)
SUPER_POD_SPLIT = Rule(
    "servers of a super pod are neighbours",
    _UNCHECKED,
    "document rank_table_config_a3.md, note on several super pods",
    "list all servers of a super pod before those of the next",
)

# Template 2.
GROUPS = Rule("group_count", "HCCL_E_PARA", "parser TopoinfoRanktableStandard::GetGroupList", "count the entries")
GROUP_REPEATED = Rule(
    "group_name unique", 'EI0014 HCCL_E_PARA "IP" is repeate', "parser GetGroupList", "name each group once"
)
INSTANCES = Rule(
    "instance_count and devices", "HCCL_E_PARA", "parser GetInstanceList", "count instances and devices as they are"
)
NAME_LONG = Rule("length of a name", "HCCL_E_PARA", "parser CheckUniquePara", "use at most 127 bytes")
POD_REPEATED = Rule(
    "pod_name unique", 'EI0014 HCCL_E_PARA "IP" is repeate', "parser GetCloudDevList", "name each pod once"
)
NIC_LOCATION = Rule(
    "para_plane_nic_location", "HCCL_E_PARA", "parser TopoinfoRanktableStandard::GetHcomInfo", 'write "device"'
)
LAB_AVERAGE = Rule(
    "1, 2, 4, 8 or 16 devices for each server",
    "HCCL_E_PARA",
    "parser CheckAverageDev",
    "give device_num and server_num so",
)
LAB_SERVERS = Rule(
    "server_num",
    'EI0014 HCCL_E_PARA "number of devices under each server node is the same"',
    "parser CheckDeviceNumValid",
    "count the different server_id",
)
LAB_SERVERS_LATER = Rule(
    "server_num", "HCCL_E_PARA", "parser HcclCommunicatorAttrs::InitRankInfo", "count the different server_id"
)
LAB_INSTANCE = Rule(
    "one device for each rank_id",
    'EI0014 HCCL_E_PARA "a valid integer"',
    "parser TopoinfoRanktableStandard::GetDevList",
    "write an instance for each device",
)

# Version 2.0.
V2_OLDER = Rule(
    "version of the chip",
    "EI0017 HCCL_E_PARA rank_count: it looks for the fields of 2.0 before it compares the version",
    "parser RankTableInfo::Deserialize",
    "write a table of version 2.0 for it",
)
V2_VERSION = Rule("version", "EI0014 HCCL_E_PARA", "parser RankTableInfo::Check", 'write "version": "2.0"')
V2_UINT = Rule(
    "unsigned number of 32 bits",
    "EI0014 HCCL_E_PARA",
    "parser GetJsonPropertyUInt",
    "write a number from 0 to 4294967295",
)
V2_NOT_OBJECT = Rule("entries are objects", "EI0017 HCCL_E_PARA", "parser json_parser.cc", "write an object")
V2_TYPE = Rule("type of the value", "HCCL_E_PARA", "parser json_parser.cc", "integers without quotes, text in quotes")
V2_LOOSE = Rule("integer", "accepts it, cut to an integer", "parser GetJsonPropertyUInt", "write an integer", "warning")
V2_MISSING = Rule("required field", "EI0017 HCCL_E_PARA", "parser json_parser.cc", "add the field")
V2_LIST = Rule("list", "EI0014 HCCL_E_PARA", "parser GetJsonPropertyList", "write a list")
V2_RANGE = Rule("range", "HCCL_E_PARA", "parser rank_table_info/*.cc", "stay in the range")
V2_RANK_COUNT = Rule(
    "rank_count", "EI0014 HCCL_E_PARA", "parser RankTableInfo::Check", "1 to 65536, and as many entries in rank_list"
)
V2_RANKS = Rule(
    "ranks 0 to N-1", "EI0014 HCCL_E_PARA", "parser RankTableInfo::Check", "number the ranks from 0, each number once"
)
V2_BACKUP = Rule(
    "replaced_local_id",
    "EI0014 HCCL_E_PARA",
    "parser RankTableInfo::Check",
    "one rank with local_id 64 may replace one local_id that no other rank has",
)
V2_LAYERS = Rule(
    "net_layer ascends", "HCCL_E_PARA", "parser NewRankInfo::Deserialize", "list the layers once each, from 0 upwards"
)
V2_LEVELS = Rule(
    "level_list", "HCCL_E_PARA", "parser NewRankInfo::GetBinStream, CheakLevelJsonsSize", "give each rank 1 to 8 layers"
)
V2_FIRST_LAYER = Rule("net_layer from 0", _UNCHECKED, "document rank_table_config_a5.md", "start with net_layer 0")
V2_NET_TYPE = Rule("net_type", "HCCL_E_PARA", "parser RankLevelInfo::Deserialize", "write TOPO_FILE_DESC or CLOS")
V2_NET_TYPE_ADVISED = Rule(
    "net_type of the layer",
    "accepts it",
    "document rank_table_config_a5.md",
    "write TOPO_FILE_DESC for net_layer 0, CLOS or TOPO_FILE_DESC above",
    "warning",
)
V2_ADDRESSES = Rule(
    "rank_addr_list of one net_instance_id",
    "HCCL_E_PARA",
    "parser RankTableInfo::CheckAndInsert",
    "give ranks of one instance as many addresses each, at most 24",
)
V2_ADDRESS = Rule(
    "addr", "HCCL_E_PARA", "parser AddressInfo::Deserialize", "write an address of its addr_type (EID, IPV4, IPV6)"
)
V2_ADDRESS_LENGTH = Rule("addr", "EI0014 HCCL_E_PARA", "parser AddressInfo::Deserialize", "use 1 to 256 bytes")
V2_BACKUP_ADDRESS = Rule(
    "backup_addr",
    "HCCL_E_PARA",
    "parser AddressInfo::ParseBackupAddrs",
    "list at most 16 addresses of the addr_type IPV4 or IPV6, or leave it out",
)
V2_CONTROL_PLANE = Rule(
    "control_plane",
    "HCCL_E_PARA",
    "parser ControlPlane::Deserialize",
    "give it an addr of its addr_type and a listen_port from 1 to 65535, or leave it out",
)
V2_LISTEN_PORT = Rule(
    "listen_port below 65536",
    "accepts it",
    "parser ControlPlane::Deserialize",
    "use a port from 1024 to 65535",
    "warning",
)
V2_PORTS = Rule("ports", "HCCL_E_PARA", "parser AddressInfo::Deserialize", "name 1 to 16 ports of 1 to 32 bytes")
V2_PORT_FORM = Rule(
    "form of a port",
    "accepts it, and looks for it in the topology file",
    "document rank_table_config_a5.md, against parser AddressInfo::Deserialize",
    'write die and port, such as "1/0", or "d2h" for a card of the host',
    "warning",
)
V2_PORT_SHARED = Rule(
    "a port has one address in its layer",
    _UNCHECKED,
    "document rank_table_config_a5.md",
    "name each port under one address",
)
V2_STATUS = Rule(
    "status", _UNCHECKED, "document rank_table_config_a5.md", "write completed, or leave it out", "warning"
)
