"""A rank whose gang has finished: it leaves as the trainer does, or waits to be killed if called with `stays`."""

import logging
import os
import signal
import sys

import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

logging.basicConfig(level=logging.INFO)
environment = config.environment()
rendezvous = Rendezvous(environment)

from resnetboost_trainer.engine import device  # noqa: E402  after the coordinator has begun to import MindSpore

device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
communicator.sum(np.ones(1, np.float32))
print("together", flush=True)
if sys.argv[1] == "stays":
    signal.pause()
communicator.leave()
print("left", flush=True)
rendezvous.close()
os._exit(0)
