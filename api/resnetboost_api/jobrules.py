"""The rules that look at several parts of a job, or at several of its stages."""

from resnetboost_api.fields import Rule

# Rules on failurePolicy and template that look at fields with defaults stand here and not there (and those on
# augmentation at dataset), because a rule must also hold for its object's bare default, {}.
ACROSS_PARTS = (
    Rule(
        """
        self.failurePolicy.restartIn == oldSelf.failurePolicy.restartIn &&
        self.failurePolicy.backoffSeconds == oldSelf.failurePolicy.backoffSeconds &&
        self.failurePolicy.maxBackoffSeconds == oldSelf.failurePolicy.maxBackoffSeconds &&
        self.failurePolicy.stableAfterSeconds == oldSelf.failurePolicy.stableAfterSeconds &&
        self.failurePolicy.hangTimeoutSeconds == oldSelf.failurePolicy.hangTimeoutSeconds &&
        has(self.failurePolicy.divergence) == has(oldSelf.failurePolicy.divergence) &&
        (!has(self.failurePolicy.divergence) || self.failurePolicy.divergence == oldSelf.failurePolicy.divergence)
        """,
        """
        of failurePolicy only maxRestarts, rules, nodeExclusion and straggler can change once the job exists; take
        back the other changes, or delete the job and apply it again
        """,
        field_path=".failurePolicy",
    ),
    Rule(
        "oldSelf.runPolicy.suspend || self.scheduling == oldSelf.scheduling",
        """
        scheduling can change only while the job is suspended; set runPolicy.suspend to true first, or delete the
        job and apply it again
        """,
        field_path=".scheduling",
    ),
    Rule(
        "self.failurePolicy.maxBackoffSeconds >= self.failurePolicy.backoffSeconds",
        "the longest wait must not be shorter than the first; use maxBackoffSeconds >= backoffSeconds",
        field_path=".failurePolicy.maxBackoffSeconds",
    ),
    Rule(
        "self.failurePolicy.backoffSeconds > 0 || self.failurePolicy.rules.all(r, r.action != 'RestartUncounted')",
        """
        the action RestartUncounted would restart a gang that always fails for ever without a wait; use
        backoffSeconds of at least 1, or the action Restart
        """,
        field_path=".failurePolicy.backoffSeconds",
    ),
    Rule(
        "!(self.dataset.name in ['digits', 'mnist_5k', 'MNIST', 'CIFAR10']) || self.model.numClasses >= 10",
        "data sets digits, mnist_5k, MNIST and CIFAR10 have ten classes; use numClasses of at least 10",
        field_path=".model.numClasses",
    ),
    Rule(
        "self.dataset.name != 'CIFAR100' || self.model.numClasses >= 100",
        "data set CIFAR100 has a hundred classes; use numClasses of at least 100",
        field_path=".model.numClasses",
    ),
    Rule(
        """
        (self.dataset.augmentation.mixupAlpha == 0.0 && self.dataset.augmentation.cutmixAlpha == 0.0) ||
        self.stages.all(s, s.localBatchSize % 2 == 0)
        """,
        "mixup and cutmix mix pairs of a rank's batch; use an even localBatchSize in each stage",
        field_path=".stages",
    ),
    Rule(
        """
        self.stages.all(s, !has(s.loss.classWeights) || size(s.loss.classWeights) == self.model.numClasses)
        """,
        "loss.classWeights of a stage are not as many as model.numClasses; give one weight for each class",
        field_path=".stages",
        message_expression="""
        "loss.classWeights of stage '"
        + self.stages.map(s, has(s.loss.classWeights) && size(s.loss.classWeights) != self.model.numClasses ?
        s.name : '').filter(n, n != '')[0]
        + "' are not as many as model.numClasses; give one weight for each class"
        """,
    ),
    Rule(
        "!has(self.model.weights) || !has(self.stages[0].startFrom)",
        """
        the first stage starts from a file or from another job's stage, not from both; leave out weights, or
        startFrom of the first stage
        """,
        field_path=".model.weights",
    ),
    Rule(
        "size(self.stages) == 1 || has(self.checkpoint.claimName) || has(self.checkpoint.url)",
        """
        each of several stages starts from the checkpoint of the one before, which would be lost with its
        pod; add the name of a PersistentVolumeClaim (any name will do for resnetboost run) or a checkpoint.url
        """,
        field_path=".checkpoint.claimName",
    ),
    Rule(
        """
        has(self.checkpoint.claimName) || has(self.checkpoint.url) ||
        self.stages.all(s, !has(s.startFrom) || !has(s.startFrom.jobName))
        """,
        """
        only a volume that outlives a job can hold another job's checkpoint; add the name of the
        PersistentVolumeClaim or the checkpoint.url that both share, or leave startFrom.jobName out
        """,
        field_path=".checkpoint.claimName",
        message_expression="""
        "stage '" + self.stages.map(s, has(s.startFrom) && has(s.startFrom.jobName) ? s.name : '')
        .filter(n, n != '')[0]
        + "' starts from another job, and only a volume that outlives that one can hold its checkpoint; "
        + "add the name of the PersistentVolumeClaim or the checkpoint.url that both share, "
        + "or leave startFrom.jobName out"
        """,
    ),
    Rule(
        "!has(self.checkpoint.best) || self.stages.all(s, s.evaluateEveryEpochs <= s.epochs)",
        """
        checkpoint.best compares evaluations, and a stage has none before its last epoch where evaluateEveryEpochs is
        above epochs; lower evaluateEveryEpochs, or leave best out
        """,
        field_path=".checkpoint.best",
        message_expression="""
        "checkpoint.best compares evaluations, and stage '"
        + self.stages.map(s, s.evaluateEveryEpochs > s.epochs ? s.name : '').filter(n, n != '')[0]
        + "' has none before its last epoch, as its evaluateEveryEpochs is above its epochs; "
        + "lower evaluateEveryEpochs, or leave best out"
        """,
    ),
    Rule(
        """
        has(self.checkpoint.best) ||
        self.stages.all(s, !has(s.startFrom) || has(s.startFrom.jobName) || s.startFrom.which == 'Last')
        """,
        """
        startFrom.which is Best, and this job keeps no best checkpoints; add checkpoint.best, such as {metric: top1}, or
        leave which out
        """,
        field_path=".checkpoint.best",
        reason="FieldValueRequired",
    ),
    Rule(
        "self.checkpoint.resume == 'Never' || has(self.checkpoint.claimName) || has(self.checkpoint.url)",
        """
        only a volume that outlives the job can hold an earlier job's checkpoint; add the name of a
        PersistentVolumeClaim or a checkpoint.url, or leave checkpoint.resume out
        """,
        field_path=".checkpoint.claimName",
    ),
    Rule(
        """
        has(self.template.image) == has(oldSelf.template.image) &&
        (!has(self.template.image) || self.template.image == oldSelf.template.image) &&
        self.template.imagePullPolicy == oldSelf.template.imagePullPolicy &&
        self.template.env == oldSelf.template.env &&
        self.template.resources == oldSelf.template.resources &&
        self.template.volumes == oldSelf.template.volumes &&
        self.template.volumeMounts == oldSelf.template.volumeMounts
        """,
        """
        of template only nodeSelector and tolerations can change once the job exists; delete the job and
        apply it again
        """,
        field_path=".template",
    ),
    # Kueue writes where a job may run into a suspended one.
    Rule(
        """
        oldSelf.runPolicy.suspend || (self.template.nodeSelector == oldSelf.template.nodeSelector &&
        self.template.tolerations == oldSelf.template.tolerations)
        """,
        """
        nodeSelector and tolerations can change only while the job is suspended; set runPolicy.suspend
        first
        """,
        field_path=".template",
    ),
    Rule(
        """
        self.template.resources.requests.all(k, !(k in self.template.resources.limits) ||
        quantity(string(self.template.resources.requests[k]))
        .compareTo(quantity(string(self.template.resources.limits[k]))) <= 0)
        """,
        "no pod may request more of a resource than its limit; raise the limit or lower the request",
        field_path=".template.resources",
        message_expression="""
        "no pod may request more " + self.template.resources.requests.filter(k,
        k in self.template.resources.limits && quantity(string(self.template.resources.requests[k]))
        .compareTo(quantity(string(self.template.resources.limits[k]))) > 0)[0]
        + " than its limit; raise the limit or lower the request"
        """,
    ),
    Rule(
        """
        [self.template.resources.requests, self.template.resources.limits].all(given, given.all(k, k !=
        (has(self.device.resourceName) ? self.device.resourceName : self.device.type == 'GPU' ?
        'nvidia.com/gpu' : self.device.type == 'CPU' ? '' : has(self.device.chip) &&
        self.device.chip == '950' ? 'huawei.com/npu' : 'huawei.com/Ascend910')))
        """,
        "each pod gets one device from the operator; leave the device's resource out of template.resources",
        field_path=".template.resources",
    ),
    Rule(
        """
        self.device.type == 'CPU' || self.template.volumes.all(v, !(v.name in ['rank-table',
        'shared-memory', 'ascend-driver', 'ascend-dcmi', 'ascend-hccn']))
        """,
        """
        on devices the volumes rank-table, shared-memory, ascend-driver, ascend-dcmi and ascend-hccn are the
        operator's; use another name
        """,
        field_path=".template.volumes",
    ),
    Rule(
        """
        self.device.type == 'CPU' || self.template.volumeMounts.all(m, !(m.mountPath in ['/dev/shm',
        '/user/serverid/devindex/config', '/usr/local/Ascend/driver', '/usr/local/dcmi',
        '/etc/hccn.conf']))
        """,
        """
        on devices /dev/shm, /user/serverid/devindex/config and the driver's places are the operator's;
        mount the volume elsewhere
        """,
        field_path=".template.volumeMounts",
    ),
    Rule(
        "self.device.count > 1 || self.stages.all(s, s.algorithm != 'Adasum')",
        """
        Adasum sums what several devices learn, and the job has one; use more devices, or the algorithm
        Momentum or THOR
        """,
        field_path=".device.count",
        message_expression="""
        "the algorithm Adasum of stage '"
        + self.stages.map(s, s.algorithm == 'Adasum' ? s.name : '').filter(n, n != '')[0]
        + "' sums what several devices learn, and the job has one; use more devices, or the algorithm "
        + "Momentum or THOR"
        """,
    ),
    Rule(
        """
        self.device.type == oldSelf.device.type &&
        has(self.device.perNode) == has(oldSelf.device.perNode) &&
        (!has(self.device.perNode) || self.device.perNode == oldSelf.device.perNode) &&
        has(self.device.resourceName) == has(oldSelf.device.resourceName) &&
        (!has(self.device.resourceName) || self.device.resourceName == oldSelf.device.resourceName) &&
        has(self.device.chip) == has(oldSelf.device.chip) &&
        (!has(self.device.chip) || self.device.chip == oldSelf.device.chip) &&
        has(self.device.rendezvous) == has(oldSelf.device.rendezvous) &&
        (!has(self.device.rendezvous) || self.device.rendezvous == oldSelf.device.rendezvous) &&
        has(self.device.runtimeClassName) == has(oldSelf.device.runtimeClassName) &&
        (!has(self.device.runtimeClassName) || self.device.runtimeClassName == oldSelf.device.runtimeClassName) &&
        has(self.device.sharedMemorySize) == has(oldSelf.device.sharedMemorySize) &&
        (!has(self.device.sharedMemorySize) || self.device.sharedMemorySize == oldSelf.device.sharedMemorySize) &&
        has(self.device.driverMounts) == has(oldSelf.device.driverMounts) &&
        (!has(self.device.driverMounts) || self.device.driverMounts == oldSelf.device.driverMounts)
        """,
        """
        of device only count, minCount, elasticAfterSeconds and resizeBackoffSeconds can change once the job exists;
        take back the other changes, or delete the job and apply it again
        """,
        field_path=".device",
    ),
    Rule(
        """
        self.device.count == oldSelf.device.count || has(self.checkpoint.claimName) || has(self.checkpoint.url) ||
        oldSelf.runPolicy.suspend
        """,
        """
        another number of devices needs new pods, and without checkpoint.claimName or url the training would begin
        again; set runPolicy.suspend to true first if it may, or delete the job and apply it again with one of them
        """,
        field_path=".device.count",
    ),
    Rule(
        "self.device.count == oldSelf.device.count || self.stages.all(s, s.algorithm != 'Adasum')",
        """
        Adasum's sums depend on the number of devices, which would be another training; delete the job and apply it
        again
        """,
        field_path=".device.count",
    ),
    Rule(
        "self.device.count == oldSelf.device.count || self.stages.all(s, !s.syncBatchNorm)",
        """
        syncBatchNorm needs the images of all devices at once, and fewer would have them one after another; delete the
        job and apply it again
        """,
        field_path=".device.count",
    ),
    Rule(
        "!has(self.device.minCount) || has(self.checkpoint.claimName) || has(self.checkpoint.url)",
        """
        with fewer devices the job goes on from its checkpoint, which is lost with the pods; add a checkpoint.claimName
        or a checkpoint.url, or leave minCount out
        """,
        field_path=".device.minCount",
    ),
    Rule(
        "!has(self.device.minCount) || self.stages.all(s, s.algorithm != 'Adasum')",
        """
        Adasum's sums depend on the number of devices, so that the training cannot go on with fewer; leave minCount out
        """,
        field_path=".device.minCount",
    ),
    Rule(
        "!has(self.device.minCount) || self.stages.all(s, !s.syncBatchNorm)",
        """
        syncBatchNorm needs the images of all devices at once, and fewer would have them one after another; leave
        minCount or syncBatchNorm out
        """,
        field_path=".device.minCount",
    ),
    Rule(
        "!has(self.device.minCount) || self.device.elasticAfterSeconds < self.runPolicy.startupDeadlineSeconds",
        """
        the attempt would fail for want of room before it goes on with fewer devices; use an elasticAfterSeconds below
        runPolicy.startupDeadlineSeconds
        """,
        field_path=".device.elasticAfterSeconds",
    ),
    # A stage without the block has the topology Hierarchical; stages of one device have a rule.
    Rule(
        """
        !has(self.device.perNode) ||
        self.stages.all(s, s.algorithm != 'Adasum' || (has(s.adasum) && s.adasum.topology == 'Flat') ||
        (has(s.deviceCount) ? s.deviceCount : self.device.count) == 1 ||
        (has(s.deviceCount) ? s.deviceCount : self.device.count) > self.device.perNode)
        """,
        """
        all devices of a stage share one node, and Adasum of topology Hierarchical averages inside a node
        and sums across nodes only; lower perNode, or use the topology Flat
        """,
        field_path=".device.perNode",
        message_expression="""
        "all devices share one node, and the Adasum of stage '"
        + self.stages.map(s, s.algorithm != 'Adasum' || (has(s.adasum) && s.adasum.topology == 'Flat') ||
        (has(s.deviceCount) ? s.deviceCount : self.device.count) == 1 ||
        (has(s.deviceCount) ? s.deviceCount : self.device.count) > self.device.perNode ? '' : s.name)
        .filter(n, n != '')[0]
        + "' averages inside a node and sums across nodes only; lower perNode, or use the topology Flat"
        """,
    ),
    Rule(
        "self.stages.all(s, !has(s.deviceCount) || s.deviceCount <= self.device.count)",
        """
        deviceCount of a stage is above device.count, the devices of the whole job; lower deviceCount or
        raise device.count
        """,
        field_path=".stages",
        message_expression="""
        "deviceCount of stage '"
        + self.stages.map(s, has(s.deviceCount) && s.deviceCount > self.device.count ? s.name : '')
        .filter(n, n != '')[0]
        + "' is above device.count, the devices of the whole job; lower deviceCount or raise device.count"
        """,
    ),
    Rule(
        """
        !has(self.device.perNode) || self.stages.all(s, !has(s.deviceCount) ||
        s.deviceCount < self.device.perNode || s.deviceCount % self.device.perNode == 0)
        """,
        """
        deviceCount of a stage must be a multiple of device.perNode or below it, because each node gets
        perNode devices; correct one of them
        """,
        field_path=".stages",
        message_expression="""
        "deviceCount of stage '"
        + self.stages.map(s, has(s.deviceCount) && s.deviceCount > self.device.perNode &&
        s.deviceCount % self.device.perNode != 0 ? s.name : '').filter(n, n != '')[0]
        + "' must be a multiple of device.perNode or below it, because each node gets perNode devices; "
        + "correct one of them"
        """,
    ),
    # MindSpore convolves bfloat16 on Ascend alone (conv2d_gpu_kernel.cc has float and half), and the first Atlas
    # training series has no such type (CANN's table of ToBfloat16).
    Rule(
        "self.device.type == 'Ascend' || self.stages.all(s, s.precision != 'BFloat16')",
        """
        precision BFloat16 is for device.type Ascend, the only one that MindSpore convolves it on; use
        Float16
        """,
        field_path=".stages",
        message_expression="""
        "precision BFloat16 of stage '"
        + self.stages.map(s, s.precision == 'BFloat16' ? s.name : '').filter(n, n != '')[0]
        + "' is for device.type Ascend, the only one that MindSpore convolves it on, and this one is "
        + self.device.type + "; use Float16"
        """,
    ),
    Rule(
        """
        !has(self.device.chip) || self.device.chip != '910A' ||
        self.stages.all(s, s.precision != 'BFloat16')
        """,
        "chip 910A has no BFloat16; use the precision Float16",
        field_path=".stages",
        message_expression="""
        "chip 910A has no BFloat16, the precision of stage '"
        + self.stages.map(s, s.precision == 'BFloat16' ? s.name : '').filter(n, n != '')[0]
        + "'; use Float16"
        """,
    ),
    Rule(
        "self.device.type != 'CPU' || !has(self.jitLevel)",
        """
        jitLevel is for the device types Ascend and GPU, since MindSpore compiles for CPUs in one way; leave
        it out
        """,
        field_path=".jitLevel",
        reason="FieldValueForbidden",
    ),
    Rule(
        """
        has(self.jitLevel) == has(oldSelf.jitLevel) &&
        (!has(self.jitLevel) || self.jitLevel == oldSelf.jitLevel)
        """,
        "jitLevel cannot change once the job exists; delete the job and apply it again",
        field_path=".jitLevel",
    ),
    Rule(
        """
        has(self.preflight) == has(oldSelf.preflight) &&
        (!has(self.preflight) || self.preflight == oldSelf.preflight)
        """,
        "preflight cannot change once the job exists; delete the job and apply it again",
        field_path=".preflight",
    ),
    Rule(
        "self.template.volumeMounts.all(m, self.template.volumes.exists(v, v.name == m.name))",
        "each of volumeMounts must name one of template.volumes; add the volume or correct the name",
        field_path=".template.volumeMounts",
        message_expression="""
        "volumeMounts names the volume '"
        + self.template.volumeMounts.map(m, m.name).filter(n,
        !self.template.volumes.exists(v, v.name == n))[0]
        + "', which is not one of template.volumes; add it there or correct the name"
        """,
    ),
)

# The places of the most stages there can be, as CEL has no range.
_PLACES = list(range(16))
_COMPONENTS = "(has(self[i].pca) ? self[i].pca.components : 32)"


def _snapshots_suffice(missing: str, subject: str, subject_of_stage: str, problem: str) -> Rule:
    """The rule that no stage of PCA starts from a stage `t` of this job for which `missing` is true.

    The message is subject and problem; where the stage can be named, `subject_of_stage` begins it. A stage starts from
    the one that startFrom names, or from the one before. The first needs a startFrom; another rule says so.
    """
    stages = f"""
        {_PLACES[1:]}.filter(i, i < size(self))
        .filter(i, self[i].algorithm == 'PCA' && !(has(self[i].startFrom) && has(self[i].startFrom.jobName)))
        """
    lacks = f"""
        self.exists(t, t.name == (has(self[i].startFrom) ? self[i].startFrom.stage : self[i - 1].name) && {missing})
        """
    words = " ".join(problem.split())
    return Rule(
        f"{stages}.all(i, !{lacks})",
        f"{subject} {words}",
        message_expression=f"""
        "{subject_of_stage} of stage '" + {stages}.filter(i, {lacks}).map(i, self[i].name)[0] + "' {words}"
        """,
    )


# Of the stages as a list.
ACROSS_STAGES = (
    # Equality of a list of type map ignores the order, and the order of stages matters.
    Rule(
        "self == oldSelf && self.map(s, s.name) == oldSelf.map(s, s.name)",
        "stages cannot change once the job exists; delete the job and apply it again",
    ),
    Rule(
        f"""
        {_PLACES}.filter(i, i < size(self))
        .filter(i, has(self[i].startFrom) && !has(self[i].startFrom.jobName))
        .all(i, {_PLACES}.filter(j, j < i)
        .exists(j, self[j].name == self[i].startFrom.stage))
        """,
        """
        startFrom.stage must be an earlier stage of this job; correct it, or add startFrom.jobName if
        another job has that stage
        """,
        message_expression=f"""
        "startFrom of stage '"
        + {_PLACES}.filter(i, i < size(self))
        .filter(i, has(self[i].startFrom) && !has(self[i].startFrom.jobName))
        .filter(i, !{_PLACES}.filter(j, j < i)
        .exists(j, self[j].name == self[i].startFrom.stage))
        .map(i, self[i].name)[0]
        + "' must name an earlier stage of this job; correct it, or add startFrom.jobName if another "
        + "job has that stage"
        """,
    ),
    Rule(
        "self[0].algorithm != 'PCA' || has(self[0].startFrom)",
        """
        PCA trains in the subspace of an earlier stage's snapshots, and the first stage has none before
        it; put a stage with snapshots first, or add a startFrom with the jobName of a job that has one
        """,
    ),
    _snapshots_suffice(
        "!has(t.snapshots)",
        "PCA",
        "the algorithm PCA",
        """
        trains in the subspace of the snapshots of the stage it starts from, which keeps none; add snapshots to that
        stage, or start from one that has them
        """,
    ),
    _snapshots_suffice(
        f"has(t.snapshots) && t.snapshots.keep <= {_COMPONENTS}",
        "pca.components",
        "pca.components",
        """
        must be below the snapshots.keep of the stage it starts from, because n snapshots span n - 1 directions about
        their mean; lower components or raise keep
        """,
    ),
    _snapshots_suffice(
        f"""
        has(t.snapshots) && double(t.epochs) - t.snapshots.from <
        (double{_COMPONENTS} - 0.001) * t.snapshots.everyEpochs
        """,
        "pca.components",
        "pca.components",
        """
        must be below the number of snapshots that the stage it starts from takes, because n snapshots span n - 1
        directions about their mean; lower components, or everyEpochs or from of those snapshots
        """,
    ),
)

NAMES = (
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        """
        the name must start with a letter, end with a letter or digit and hold only a-z, 0-9 and '-',
        because services and pods are named after it
        """,
        field_path=".metadata.name",
        message_expression="""
        "'" + self.metadata.name + "' must start with a letter, end with a letter or digit and "
        + "hold only a-z, 0-9 and '-', because services and pods are named after it"
        """,
    ),
    Rule(
        "self.spec.stages.all(s, size(self.metadata.name) + size(s.name) <= 50)",
        """
        metadata.name and the name of a stage are too long together; use at most 50 characters for both,
        because pods are named after them
        """,
        field_path=".metadata.name",
        message_expression="""
        "metadata.name and the name of stage '"
        + self.spec.stages.map(s, s.name).filter(n, size(self.metadata.name) + size(n) > 50)[0]
        + "' are too long together; use at most 50 characters for both, because pods are named after them"
        """,
    ),
)
