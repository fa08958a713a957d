"""Settings of each algorithm of a stage."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from resnetboost_api.fields import Block, Rule

DampingSplit = Literal["Pi", "Symmetric"]
Reduce = Literal["Delta", "Gradient"]
Topology = Literal["Hierarchical", "Flat"]
Solver = Literal["BFGS", "SGD"]


class Momentum(Block, frozen=True, kw_only=True):
    """How a gradient becomes an update of the weights, also one that THOR has rescaled. With Adasum each node does this
    by itself before the sum, or all together after it; see adasum.reduce. Of a stage of PCA with the solver BFGS
    only weightDecay counts, as a part of the loss that is made small.
    """

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Share of the last update that is kept in the next one, from 0 to below 1."""
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0001
    """Factor of the pull towards zero, on the weights of convolutions and of the last layer only, never on biases and
    batch normalization.
    """
    nesterov: bool = False
    """Look ahead by one update (Nesterov's momentum)."""


class Lars(Block, frozen=True, kw_only=True):
    """Layer-wise rates (LARS), for very large global batches: the learning rate of each weight matrix is multiplied by
    the length of the weights over that of their gradient, and by trustCoefficient. Biases and batch normalization
    have the plain learning rate. Left out, all have. Momentum only.
    """

    trust_coefficient: Annotated[float, Meta(gt=0, le=1000)] = 0.001
    """Factor on the layer-wise rates. With the usual 0.001 the peak of learningRate is some ten times that of plain
    Momentum.
    """


class AdamW(Block, frozen=True, kw_only=True):
    """Settings of the algorithm AdamW, which all have defaults. It divides the mean of the last gradients by the root
    of the mean of their squares, so that each weight changes by about the learning rate, and decays the weights apart
    from the gradient.
    """

    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Share of the old mean of the gradients that a step keeps, from 0 to below 1."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    """Share of the old mean of their squares that a step keeps, from 0 to below 1."""
    # No smaller bound: the API server rounds it to 0 for whole numbers, and takes 0.
    epsilon: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """What is added to the root of the mean square, so that small gradients are not divided by 0."""
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] = 0.01
    """Factor of the pull towards zero, times the learning rate, on the weights of convolutions and of the last layer
    only, never on biases and batch normalization.
    """


class Lamb(Block, frozen=True, kw_only=True):
    """Settings of the algorithm LAMB, which all have defaults. It updates each weight matrix in AdamW's direction by a
    length of the learning rate times that of the weights, for very large global batches. Biases and batch
    normalization are updated as with AdamW.
    """

    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Share of the old mean of the gradients that a step keeps, from 0 to below 1."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    """Share of the old mean of their squares that a step keeps, from 0 to below 1."""
    epsilon: Annotated[float, Meta(gt=0, le=1)] = 1e-6
    """What is added to the root of the mean square, so that small gradients are not divided by 0."""
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] = 0.01
    """Factor of the weights in the update, on those of convolutions and of the last layer only, never on biases and
    batch normalization.
    """


class Damping(Block, frozen=True, kw_only=True):
    """What is added to the diagonal of the curvature before it is inverted. More of it makes an update shorter and more
    like one of Momentum.
    """

    # No smaller bound: the API server rounds it to 0 for whole numbers, and takes 0.
    initial: Annotated[float, Meta(gt=0, le=1000)] = 0.1
    """Damping at the start of the stage."""
    decay: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Factor on the damping over decayEpochs, evenly from step to step."""
    decay_epochs: Annotated[float, Meta(gt=0, le=100000)] = 10
    """Epochs in which decay applies once. Parts of an epoch are allowed."""
    split: DampingSplit = "Pi"
    """How the damping is shared by the two factors. Pi: in proportion to their mean eigenvalues. Symmetric: the same
    for both, as MindSpore does.
    """


class TraceRule(Block, frozen=True, kw_only=True):
    """Which layers an update leaves out, by how much the trace of their curvature has changed since they were last
    updated, relative to what it was.
    """

    update_above: Annotated[float, Meta(ge=0, le=1000)] = 0.3
    """A layer with a larger change is updated, another keeps its inverses and is asked again at the next update. 0
    updates every layer every time. The paper's 0.01 leaves none out: the traces of batches differ by more.
    """
    stop_below: Annotated[float, Meta(ge=0, le=1000)] = 0
    """A layer with a smaller change is never asked again, and updated only when the damping has changed by three
    tenths; at most updateAbove. 0 stops none.
    """
    smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.8
    """Share of the old trace that is kept in the moving average which is compared, from 0 (none, so a single batch
    decides) to below 1.
    """


class Thor(Block, frozen=True, kw_only=True):
    """Settings of the algorithm THOR, which all have defaults. It estimates the curvature of each layer by two factors,
    of the layer's inputs and of the gradients at its outputs, and multiplies the gradient by the inverses of both. A
    stage of Adasum does so too if it has this block, and sums the updates that come of it.
    """

    frequency: Annotated[int, Meta(ge=1, le=1000000)] = 10
    """Steps from one update of the curvature to the next; the steps between use the inverses of the last one."""
    block_size: Annotated[int, Meta(ge=1, le=8192)] = 128
    """Most rows of the equal blocks on the diagonal that a larger factor is cut into; what lies between the blocks is
    taken for 0. Larger ones are more exact and cost more.
    """
    damping: Damping = Damping()
    trace_rule: TraceRule = TraceRule()
    clip_norm: Annotated[float, Meta(gt=0, le=1000000)] | None = None
    """Longest Euclidean norm that the rescaled gradient of all weights together may have; a longer one is scaled down
    to it. Left out, none is.
    """
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.traceRule.stopBelow <= self.traceRule.updateAbove",
            "a layer must not stop at changes it is still updated at; lower stopBelow or raise updateAbove",
            field_path=".traceRule.stopBelow",
        ),
    )


class Summing(Block, frozen=True, kw_only=True):
    """What Adasum sums: the part of its settings that a trainer gets too."""

    reduce: Reduce = "Delta"
    """What is summed. Delta: each node does a step with a momentum of its own, and the changes of the weights are
    summed. Gradient: the gradients are summed, and one step follows.
    """


class Adasum(Summing, frozen=True, kw_only=True):
    """Settings of the algorithm Adasum, which all have defaults. It sums vectors in pairs, tensor by tensor: orthogonal
    ones are added, parallel ones averaged, and what lies between gets something between.
    """

    topology: Topology = "Hierarchical"
    """Who sums. Hierarchical: the ranks of a node (device.perNode; one rank if that is left out) take the mean of their
    gradients, and Adasum goes across nodes. Flat: Adasum goes across all ranks.
    """


class LineSearch(Block, frozen=True, kw_only=True):
    """How long a step of BFGS is: the first of ever shorter lengths, from 1 on, that lowers the loss of the step's own
    images enough (Armijo's rule). The solver SGD has none.
    """

    contraction: Annotated[float, Meta(gt=0, lt=1)] = 0.55
    """Factor on the length from one trial to the next (rho)."""
    sufficient_decrease: Annotated[float, Meta(gt=0, lt=1)] = 0.4
    """Share of the decrease that the slope promises which a length must reach to be accepted (sigma)."""
    max_trials: Annotated[int, Meta(ge=1, le=100)] = 20
    """Most lengths that are tried in a step; if none of them is accepted, the step does not move in the subspace. Each
    costs a forward pass.
    """


class Residual(Block, frozen=True, kw_only=True):
    """What is done with the part of the gradient that lies outside the subspace: a step of momentum at a constant
    rate.
    """

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Share of the last such update that is kept in the next one, from 0 to below 1 (gamma)."""
    learning_rate: Annotated[float, Meta(ge=0, le=1000)] = 0.001
    """Rate of these updates (alpha). 0 stays in the subspace."""


class Pca(Block, frozen=True, kw_only=True):
    """Settings of the algorithm PCA, which all have defaults. It takes the principal components of the snapshots of the
    stage it starts from, and trains the weights' few coordinates along them instead of the weights themselves (Li et
    al., dimension-reduced training).
    """

    components: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Dimension of the subspace: how many of the first principal components span it. Below the number of snapshots."""
    solver: Solver = "BFGS"
    """How a step inside the subspace is found. BFGS (P-BFGS): by a quasi-Newton method with a line search, which needs
    no learning rate. SGD (P-SGD): the gradient's part in the subspace, by learningRate and momentum.
    """
    line_search: LineSearch = LineSearch()
    residual: Residual = Residual()
