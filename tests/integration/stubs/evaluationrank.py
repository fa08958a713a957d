"""One rank of a gang that evaluates a network on the digits, with padding, and writes what it found."""

import signal
import sys
from pathlib import Path

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # MindSpore sends SIGTERM to itself when a peer has ended first
environment = config.environment()
rendezvous = Rendezvous(environment)

import mindspore  # noqa: E402  after the coordinator has begun to import it
from mindspore import Tensor  # noqa: E402

from resnetboost_trainer.data import registry  # noqa: E402
from resnetboost_trainer.engine import device  # noqa: E402
from resnetboost_trainer.engine.evaluator import Evaluation  # noqa: E402
from resnetboost_trainer.models import resnet  # noqa: E402

BATCH = 50  # 360 images over 3 ranks need 9 batches: 90 places are padding


def main(folder: Path) -> None:
    device.prepare("CPU")
    communicator = Communicator(environment.rank, environment.world_size)
    network = resnet.build("resnet20", 10, 1)
    for number, parameter in enumerate(network.get_parameters()):
        if parameter.ndim > 1:
            drawn = np.random.default_rng(number).normal(0, np.prod(parameter.shape[1:]) ** -0.5, parameter.shape)
            parameter.set_data(Tensor(1.4 * drawn, mindspore.float32))
    dataset = registry.load(config.Dataset(name="digits"), 10)
    network.set_train(False)
    mean = network(Tensor(dataset.x_test)).asnumpy().mean(0)
    bias = list(network.get_parameters())[-1]
    bias.set_data(Tensor(bias.asnumpy() - mean))  # else one class would be predicted for all images
    evaluation = Evaluation(network, dataset, communicator, BATCH)
    plain = evaluation.run(lambda: None)
    result, found = evaluation.run_with_predictions(lambda: None)
    evaluation.feed.close()
    assert (plain.top1, plain.top5) == (result.top1, result.top5)
    assert np.isclose(plain.loss, result.loss, rtol=1e-5), "the two graphs may round differently"
    np.savez(
        folder / f"rank-{environment.rank}.npz",
        classes=found.classes,
        confidences=found.confidences,
        counted=found.counted,
        labels=dataset.test.labels,
        top1=result.top1,
    )
    communicator.leave()
    rendezvous.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
