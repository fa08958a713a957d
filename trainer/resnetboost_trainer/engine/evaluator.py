"""Evaluation over the whole test set: every sample counts exactly once, whatever the number of ranks."""

from collections.abc import Callable, Iterator

import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.data import sampler
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import Batch, BatchRequest, DataLoader
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator, as_bytes, from_bytes
from resnetboost_trainer.engine.loss import SampleCrossEntropy
from resnetboost_trainer.failures import DataError
from resnetboost_trainer.metrics.predictions import Predictions
from resnetboost_trainer.metrics.record import EvaluationRecord


class Scores(nn.Cell):
    """Sums over a batch: (images, labels, mask) -> [loss, top-1 hits, top-5 hits, samples]."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network
        self.cross_entropy = SampleCrossEntropy()

    def construct(self, images: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Shapes: images (n, c, h, w), labels (n,), mask (n,) of 0 and 1 -> (4,)."""
        return self.sums(self.network(images), labels, mask)

    def sums(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Compute the sums from logits (n, classes).

        A label's place is the number of logits above it; of equal ones the lower class comes first, as in a stable
        sort. The comparison puts nan above everything: it must not count as a hit.
        """
        column = labels.reshape(-1, 1)
        own = ops.gather_elements(logits, 1, column)
        classes = ops.arange(logits.shape[1]).astype(labels.dtype).reshape(1, -1)
        beats = ops.logical_or(ops.logical_not(logits <= own), ops.logical_and(logits == own, classes < column))
        place = beats.astype(mask.dtype).sum(1)
        loss = self.cross_entropy(logits, labels)
        hits = [(place < k).astype(mask.dtype) for k in (1, 5)]
        sums = [(values * mask).sum().reshape(1) for values in (loss, *hits)]
        return ops.concat([*sums, mask.sum().reshape(1)])


class ScoresAndLogits(Scores):
    """The sums, and the logits (n, classes)."""

    def construct(self, images: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(images)
        return self.sums(logits, labels, mask), logits


class Evaluation:
    """Evaluates a network on this rank's share of the test set and sums the results over the gang."""

    def __init__(
        self,
        network: nn.Cell,
        dataset: Dataset,
        communicator: Communicator,
        batch_size: int,
        corrupt: Corrupt | None = None,
    ) -> None:
        """`corrupt` counts images that cannot be used, which are left out of the result; by default the first fails."""
        self.scores = Scores(network)
        self.communicator = communicator
        size, rank = communicator.size, communicator.rank
        self.images = len(dataset.test.labels)
        self.slices = list(sampler.evaluation_slices(self.images, size, rank, batch_size))
        self.feed = DataLoader(dataset.test, corrupt or Corrupt(0), dataset.workers)

    def run(self, beat: Callable[[], None]) -> EvaluationRecord:
        """Evaluate the whole test set; the result is the same on every rank. A collective. Calls `beat` per batch."""
        self.scores.set_train(False)
        sums = np.zeros(4, np.float64)
        for batch, _, mask in self._batches():
            sums += self.scores(Tensor(batch.images), Tensor(batch.labels), Tensor(mask)).asnumpy()
            beat()
        return self._record(sums)

    def run_with_predictions(self, beat: Callable[[], None]) -> tuple[EvaluationRecord, Predictions]:
        """Evaluate like `run`, and keep every image's prediction. Compiles a graph of its own. A collective."""
        scores = ScoresAndLogits(self.scores.network)
        scores.set_train(False)
        sums, predictions = np.zeros(4, np.float64), Predictions(self.images)
        for batch, indices, mask in self._batches():
            found, logits = scores(Tensor(batch.images), Tensor(batch.labels), Tensor(mask))
            sums += found.asnumpy()
            predictions.add(indices, mask, logits.asnumpy())
            beat()
        predictions.gather(self.communicator.sum)
        return self._record(sums), predictions

    def _batches(self) -> Iterator[tuple[Batch, NDArray[np.int64], NDArray[np.float32]]]:
        """Yield this rank's batches with their indices and what counts: neither padding nor unusable images."""
        wanted = (BatchRequest(indices, 0, len(indices)) for indices, _ in self.slices)
        for batch, (indices, mask) in zip(self.feed.batches(wanted), self.slices, strict=True):
            yield batch, indices, mask * batch.usable

    def _record(self, sums: NDArray[np.float64]) -> EvaluationRecord:
        loss, top1, top5, count = self._over_the_gang(sums)
        if not count:
            raise DataError("no image of the test set can be used; the logs of the ranks name them")
        return EvaluationRecord(top1=round(top1 / count, 6), top5=round(top5 / count, 6), loss=loss / count)

    def _over_the_gang(self, sums: NDArray[np.float64]) -> tuple[float, int, int, int]:
        """Sum over the gang: the loss as a float32, the type of collectives, and the three counts exactly."""
        own = np.concatenate([sums[:1].astype(np.float32), as_bytes([int(count) for count in sums[1:]])])
        total = self.communicator.sum(own)
        top1, top5, count = from_bytes(total[1:])
        return float(total[0]), top1, top5, count
