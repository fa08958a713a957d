"""Pods of each device type: resources, image, mounts and node settings, with the job's own settings and without."""

import re
from typing import Any

import pytest

from resnetboost_api import __version__, names
from resnetboost_operator.errors import UserError
from resnetboost_operator.local.entry import check_device
from resnetboost_operator.manifests import gang
from resnetboost_operator.manifests.devices import Images
from resnetboost_operator.manifests.pod import GROUP_ID
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.manifests.volumes import DRIVER_MOUNTS
from support.simulation import job


def pod(device: dict[str, Any], **template: Any) -> dict[str, Any]:
    wanted = job(device=device, template=template)
    return dict(pod_manifest(wanted, wanted.spec.stages[0], 0, 0)["spec"])


def container(device: dict[str, Any], **template: Any) -> dict[str, Any]:
    (found,) = pod(device, **template)["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("device", "image", "resource"),
    [
        ({"type": "CPU"}, f"resnetboost/trainer-cpu:{__version__}", None),
        ({"type": "Ascend"}, f"resnetboost/trainer-ascend:{__version__}", "huawei.com/Ascend910"),
        ({"type": "Ascend", "chip": "950"}, f"resnetboost/trainer-ascend:{__version__}", "huawei.com/npu"),
        ({"type": "Ascend", "resourceName": "huawei.com/Ascend910-2c"}, None, "huawei.com/Ascend910-2c"),
        ({"type": "GPU"}, f"resnetboost/trainer-gpu:{__version__}", "nvidia.com/gpu"),
        ({"type": "GPU", "resourceName": "nvidia.com/mig-1g.10gb"}, None, "nvidia.com/mig-1g.10gb"),
    ],
    ids=lambda value: ", ".join(value.values()) if isinstance(value, dict) else "",
)
def test_a_pod_gets_one_device_and_the_image_of_its_type(
    device: dict[str, Any], image: str | None, resource: str | None
) -> None:
    found = container(device, resources={"limits": {"memory": "4Gi"}})
    assert found["image"] == image or image is None
    one = {resource: 1} if resource is not None else {}
    assert found["resources"].get("requests", {}) == one
    assert found["resources"]["limits"] == {"memory": "4Gi", **one}


def test_a_custom_image_applies_to_every_type() -> None:
    assert container({"type": "GPU"}, image="mine:1")["image"] == "mine:1"


@pytest.mark.parametrize(
    ("template", "images", "expected"),
    [
        ({}, Images(), f"resnetboost/trainer-gpu:{__version__}"),
        ({}, Images("registry.example/mirror"), f"registry.example/mirror/resnetboost/trainer-gpu:{__version__}"),
        ({}, Images("registry.example", {"GPU": "theirs:2"}), "theirs:2"),
        ({}, Images(by_type={"CPU": "theirs:2"}), f"resnetboost/trainer-gpu:{__version__}"),
        ({"image": "mine:1"}, Images("registry.example", {"GPU": "theirs:2"}), "mine:1"),
    ],
    ids=["published", "a mirror", "a name", "another type's name", "the job's own"],
)
def test_a_cluster_may_have_the_images_elsewhere(template: dict[str, Any], images: Images, expected: str) -> None:
    found = images.filled_in(job(device={"type": "GPU"}, template=template))
    assert pod_manifest(found, found.spec.stages[0], 0, 0)["spec"]["containers"][0]["image"] == expected


@pytest.mark.parametrize(
    ("device", "sizes"),
    [({"type": "CPU"}, []), ({"type": "GPU"}, ["1Gi"]), ({"type": "Ascend", "sharedMemorySize": "8Gi"}, ["8Gi"])],
    ids=["CPU", "GPU", "Ascend with a size of its own"],
)
def test_devices_share_memory_of_a_size(device: dict[str, Any], sizes: list[str]) -> None:
    volumes = [found for found in pod(device)["volumes"] if found.get("emptyDir", {}).get("medium") == "Memory"]
    assert [found["emptyDir"]["sizeLimit"] for found in volumes] == sizes
    mounts = {found["mountPath"] for found in container(device)["volumeMounts"]}
    assert (names.PATH_SHARED_MEMORY in mounts) == bool(sizes)


@pytest.mark.parametrize(
    ("device", "mounted"),
    [
        ({"type": "Ascend"}, True),
        ({"type": "Ascend", "driverMounts": False}, False),
        ({"type": "GPU"}, False),
        ({"type": "CPU"}, False),
    ],
    ids=["Ascend", "Ascend whose runtime brings it", "GPU", "CPU"],
)
def test_the_nodes_driver_is_mounted_read_only(device: dict[str, Any], mounted: bool) -> None:
    volumes = {found["name"] for found in pod(device)["volumes"] if "hostPath" in found}
    assert volumes == ({name for name, _, _ in DRIVER_MOUNTS} if mounted else set())
    assert all(found["readOnly"] for found in container(device)["volumeMounts"] if found["name"] in volumes)


@pytest.mark.parametrize("kind", ["Ascend", "GPU"])
def test_pods_tolerate_the_taints_of_device_nodes(kind: str) -> None:
    found = pod({"type": kind}, tolerations=[{"key": "dedicated", "operator": "Exists"}])
    resource = next(iter(found["containers"][0]["resources"]["limits"]))
    assert [toleration["key"] for toleration in found["tolerations"]] == ["dedicated", resource]
    assert "tolerations" not in pod({"type": "CPU"})


def test_pods_run_under_the_runtime_class_that_the_job_names() -> None:
    assert pod({"type": "GPU", "runtimeClassName": "nvidia"})["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod({"type": "GPU"})


@pytest.mark.parametrize("kind", ["CPU", "Ascend", "GPU"])
def test_a_trainer_that_is_not_root_may_write_the_checkpoint_volume(kind: str) -> None:
    security = pod({"type": kind})["securityContext"]
    assert (security["runAsNonRoot"], security["fsGroup"]) == (True, GROUP_ID)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"type": "GPU", "count": 2}, True),
        ({"type": "Ascend", "count": 2}, False),
        ({"type": "Ascend", "count": 2, "rendezvous": "Coordinator"}, True),
        ({"type": "Ascend", "count": 1}, False),
    ],
    ids=["GPU", "Ascend", "Ascend with a coordinator", "one Ascend device"],
)
def test_only_a_coordinator_needs_a_name(device: dict[str, Any], expected: bool) -> None:
    """Without launchers, whose leader needs one too."""
    wanted = job(device=device, failurePolicy={"restartIn": "NewPod"})
    shared = gang.shared(wanted, wanted.spec.stages[0], 0)
    assert [found["kind"] for found in shared] == ["ConfigMap", "Service"] if expected else ["ConfigMap"]
    variables = {found["name"] for found in container(device)["env"]}
    assert (names.ENV_COORDINATOR in variables) is expected


@pytest.mark.parametrize("kind", ["Ascend", "GPU"])
def test_this_machine_runs_no_job_for_devices(kind: str) -> None:
    machine = {"cores": 2, "memory_bytes": 8 << 30}
    stages: list[dict[str, Any]] = [{"name": "base", "deviceCount": 8}, {"name": "fine"}]
    advice = re.escape("try --set device.type=CPU --set device.count=2 --set stages[0].deviceCount=2")
    with pytest.raises(UserError, match=rf"device\.type: {kind} needs a cluster.*{advice}$"):
        check_device({"device": {"type": kind, "count": 4}, "stages": stages}, **machine)
    with pytest.raises(UserError, match=r"--set device\.count=1$"):
        check_device({"device": {"type": kind, "count": 4}, "stages": stages[1:]}, cores=8, memory_bytes=1 << 30)
    check_device({"device": {"type": "CPU", "count": 4}, "stages": stages}, **machine)
