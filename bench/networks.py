"""Networks used only by benchmarks."""

from mindspore import Tensor, nn

from resnetboost_trainer.models.init import initialise
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm
from resnetboost_trainer.models.resnet import global_mean


class ThreeConvolutions(nn.Cell):
    """16, 32 and 64 channels with BN, each after the first at stride 2, then a dense layer: (n, 1, h, w) -> (n, 10)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(1, 16, 3, 1, 1), BatchNorm(16)
        self.conv2, self.bn2 = Conv2d(16, 32, 3, 2, 1), BatchNorm(32)
        self.conv3, self.bn3 = Conv2d(32, 64, 3, 2, 1), BatchNorm(64)
        self.fc = nn.Dense(64, 10)
        initialise(self, seed)

    def construct(self, x: Tensor) -> Tensor:
        y = self.bn1.rectified(self.conv1(x))
        y = self.bn2.rectified(self.conv2(y))
        return self.fc(global_mean(self.bn3.rectified(self.conv3(y))))
