"""Kueue's labels, annotations and scheduling gate (kueue/apis/kueue/v1beta2, kueue/pkg/constants)."""

LABEL_JOB_UID = "kueue.x-k8s.io/job-uid"
LABEL_POD_SET = "kueue.x-k8s.io/podset"
LABEL_CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
# Never queue-name: by that one Kueue would take the single pod for a job of its own.
LABEL_LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"

ANNOTATION_WORKLOAD = "kueue.x-k8s.io/workload"
ANNOTATION_REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
ANNOTATION_UNCONSTRAINED_TOPOLOGY = "kueue.x-k8s.io/podset-unconstrained-topology"
ANNOTATION_SLICE_TOPOLOGY = "kueue.x-k8s.io/podset-slice-required-topology"
ANNOTATION_SLICE_SIZE = "kueue.x-k8s.io/podset-slice-size"

# On a pod that Kueue's webhook took for a job of its own.
GATE = "kueue.x-k8s.io/admission"
