"""A trainer that is killed while it writes a checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.train import SGD, Trainer
from tests.train.models import classifier


@pytest.mark.heavy
def test_a_kill_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    trainer = Trainer(classifier(), "cross_entropy", SGD(0.1), threads=1)
    trainer.save(path)
    for delay in np.linspace(0.002, 0.02, 8):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    trainer.save(path)
            finally:
                os._exit(1)
        time.sleep(float(delay))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        trainer.load(path)
    assert trainer.steps == 0
