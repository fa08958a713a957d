"""Half precision: the MindSpore type for each value of `precision`, and casts where an operator lacks it.

`resnet` casts the images; `optim/grad_scaler` scales the loss; `resnetboost_api.stage.completed` gives Float16 its
default loss scale.

As in Micikevicius et al. 2018, §3: weights, statistics and everything after the last convolution stay float32, and so
do gradients, optimizers and checkpoints; a checkpoint fits every precision.
"""

import mindspore
from mindspore import Tensor

from resnetboost_trainer.config import Config

TYPES = {"Float32": mindspore.float32, "Float16": mindspore.float16, "BFloat16": mindspore.bfloat16}


def single(x: Tensor) -> Tensor:
    """Cast to float32."""
    return x if x.dtype == mindspore.float32 else x.astype(mindspore.float32)


def operable(x: Tensor) -> Tensor:
    """Cast bfloat16 to float32: MindSpore 2.10's batch normalization and pooling reject it on every device."""
    return x.astype(mindspore.float32) if x.dtype == mindspore.bfloat16 else x


def advice(config: Config) -> str | None:
    """Return a warning for Float16 without a loss scale: gradients below 3e-8, half its smallest number, become 0.

    BFloat16 has the range of float32 and needs no scale.
    """
    if config.precision != "Float16" or config.loss_scale != 1 or config.dynamic_loss_scale is not None:
        return None
    return "precision Float16 without a loss scale: small gradients vanish; set dynamicLossScale: {} or lossScale: 128"
