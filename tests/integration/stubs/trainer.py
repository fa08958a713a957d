"""Stub trainer for tests of the runner: same interface, no computation, a step every 20 ms.

STUB=rank,attempt,step,exit code: that rank exits so at that step of that attempt (137: by SIGKILL).
STUB_LEARNS=1: evaluates after each epoch; the nearer the learning rate is to 0.1, the higher is the accuracy.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

CONFIG = yaml.safe_load(Path(os.environ["RESNETBOOST_CONFIG"]).read_text())
RANK = int(os.environ["RESNETBOOST_RANK"])
STEPS = 10 * CONFIG["epochs"]
STEP_SECONDS = float(os.environ.get("STUB_STEP_SECONDS", "0.02"))
COLUMNS = "step,epoch,time,loss,accuracy,learning_rate,step_seconds,data_wait_seconds,compute_seconds"
LEARNS = bool(os.environ.get("STUB_LEARNS"))
PEAK = CONFIG.get("learningRate", {}).get("peak", 0.1)  # the default is left out
EXIT_CODES = {0: "Succeeded", 11: "DataError", 15: "StorageError", 16: "Interrupted", 17: "Diverged"}


def accuracy(step: int) -> float:
    """Top-1 accuracy of the last evaluation."""
    return 0.8 + 0.001 * (step // 10) - 0.2 * abs(math.log10(PEAK / 0.1))


class Trainer:
    """One rank. Only rank 0 has a checkpoint folder."""

    def __init__(self) -> None:
        self.step = self.first = 0
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop)
        if os.environ.get("STUB_STUBBORN"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def stop(self, *_: Any) -> None:
        self.stopping = True

    def run(self) -> None:
        stage = Path(os.environ.get("RESNETBOOST_CHECKPOINTS", "nowhere"), CONFIG["job"]["uid"], CONFIG["stage"])
        own = stage / f"attempt-{CONFIG['attempt']}"
        self.step = max((int(path.name.removeprefix("step-")) for path in stage.glob("*/step-*")), default=0)
        self.first = self.step
        if RANK == 0:
            own.mkdir(parents=True)
            (own / "metrics.csv").write_text(COLUMNS + (",top1" if LEARNS else "") + "\n")
            self.serve()
        while self.step < STEPS and not self.stopping:
            self.die_if_told()
            time.sleep(STEP_SECONDS)
            self.step += 1
            if RANK == 0:
                self.record(own)
        self.end(16 if self.stopping else 0)

    def record(self, own: Path) -> None:
        with (own / "metrics.csv").open("a") as file:
            top1 = f",{accuracy(self.step) if self.step % 10 == 0 else ''}" if LEARNS else ""
            file.write(f"{self.step},{self.step / 10},{time.time()},{1 / self.step},0.5,0.1,0.02,0.001,0.01{top1}\n")
        if self.step % 10 == 0 or self.stopping:
            checkpoint = own / f"step-{self.step:08}"
            checkpoint.mkdir()
            (checkpoint / "manifest.json").write_text("{}")

    def die_if_told(self) -> None:
        rank, attempt, step, code = map(int, os.environ.get("STUB", "-1,0,0,0").split(","))
        if (rank, attempt) == (RANK, CONFIG["attempt"]) and self.step >= step:
            if code == 137:
                os.kill(os.getpid(), signal.SIGKILL)
            self.end(code)

    def end(self, code: int) -> None:
        words: dict[str, Any] = {
            "class": EXIT_CODES[code],
            "message": f"stub ends with {code}",
            "rank": RANK,
            "step": self.step,
        }
        if code == 0:
            words |= {"top1": accuracy(self.step) if LEARNS else 0.978, "top5": 1.0, "testLoss": 0.7}
        Path(os.environ["RESNETBOOST_TERMINATION_LOG"]).write_text(json.dumps(words))
        sys.stdout.flush()
        os._exit(code)

    def progress(self) -> dict[str, Any]:
        known = {"top1": accuracy(self.step)} if LEARNS and self.step >= 10 else {}
        return {
            **known,
            "state": "Training",
            "stage": CONFIG["stage"],
            "attempt": CONFIG["attempt"],
            "step": self.step,
            "totalSteps": STEPS,
            "epoch": self.step / 10,
            "totalEpochs": CONFIG["epochs"],
            "loss": 0.5,
            "stepSeconds": STEP_SECONDS,
            "resumedStep": self.first,
            "checkpointStep": self.step // 10 * 10 or None,
            "heartbeat": self.step,
        }

    def serve(self) -> None:
        trainer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(trainer.progress()).encode())

        server = HTTPServer((os.environ["RESNETBOOST_BIND_ADDRESS"], 9400), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    Trainer().run()
