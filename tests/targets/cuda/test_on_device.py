"""What only a device can show: replays to the bit, a lost device, memory that runs out, two processes, a decoder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.dtypes import bf16, f32
from dovetail.errors import OutOfMemoryError
from dovetail.models import LlamaShape, llama_cached, random_weights
from dovetail.targets.cuda.driver.driver import driver
from tests.gguf_files import TOKENS, tokenizer_fields, written
from tests.gguf_files import decoder as decoder_file
from tests.targets.cuda.devices import missing, on_device
from tests.targets.cuda.replays import has_persistent, replay

# Memory runs out and a context is lost here: other tests of the card would fail of it.
pytestmark = [on_device, pytest.mark.serial]
has_persistent_kernels = pytest.mark.skipif(
    bool(missing()) or not has_persistent(driver()), reason="blocks of the device do not wait for each other"
)
ROOT = Path(__file__).parents[3]
SHAPE = LlamaShape(layers=2, hidden=128, heads=4, kv_heads=2, inner=192, vocabulary=256, dtype=bf16)
LOST = """
import ctypes, numpy as np, dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.targets.cuda.driver.driver import driver

def compiled(target="cuda"):
    return dovetail.compile(Graph.of({"y": ops.tanh(dovetail.input("x", f32["n"]))}), target=target, cache="off")

program, x = compiled(), np.ones(1000, np.float32)
program(x=x)
array = program.to_device({"x": x})["x"]
array.lease.buffer._address = 1 << 52
lost = 0
for _ in range(2):
    try:
        program.run({"x": array})
    except dovetail.errors.DeviceError as error:
        lost += error.is_lost
array.lease.buffer._address = 0
try:
    np.testing.assert_allclose(compiled()(x=x)["y"], np.tanh(x), rtol=1e-5)
except dovetail.errors.DeviceError as error:
    assert error.is_lost and "start a new process" in str(error), error
np.testing.assert_allclose(compiled("cpu")(x=x)["y"], np.tanh(x), rtol=1e-5)
print("went on", lost)
"""
SHARED = """
import numpy as np, dovetail
from dovetail import Graph, library
from dovetail.dtypes import bf16
a, b = dovetail.input("a", bf16[512, 512]), dovetail.input("b", bf16[512, 512])
program = dovetail.compile(Graph.of({"y": library.softmax(a @ b)}), target="cuda")
rng = np.random.default_rng(0)
given = {n: rng.normal(size=(512, 512)).astype(bf16.numpy) for n in "ab"}
first = program.run(given)["y"].tobytes()
assert all(program.run(given)["y"].tobytes() == first for _ in range(200))
print("same")
"""
SHARED_STEP = """
from tests.targets.cuda.replays import replay
replay(200)
print("same")
"""
WAITING = """
import sys, time, numpy as np, dovetail
from dataclasses import replace
from dovetail import Graph, library
from dovetail.dtypes import bf16
from dovetail.codegen.llvm.nvptx import words
from dovetail.models import random_weights
from dovetail.targets.cuda.driver.driver import driver

words.MOST_POLLS = 1 << int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 12
words.send = lambda *given: None
driver().description = replace(driver().description, cooperative="on")
x = dovetail.input("x", bf16[1, 128])
for layer in range(4):
    normed = library.rms_norm(x, dovetail.param(f"gain{layer}", bf16[128]), eps=1e-6)
    x = x + normed @ dovetail.param(f"w{layer}", bf16[128, 128])
graph = Graph.of({"y": x})
program = dovetail.compile(graph, target="cuda", cache="off").bind(random_weights(graph))
there, begun = program.to_device({"x": np.ones((1, 128), bf16.numpy)}), time.monotonic()
try:
    program.run(there, outputs="device")["y"].numpy()
except dovetail.errors.DeviceError as error:
    print("after", round(time.monotonic() - begun, 2), "s:", error)
"""


def run(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_thousand_replays_are_equal_to_the_bit() -> None:
    x, w = dovetail.input("x", bf16[128, 384]), dovetail.param("w", bf16[384, 384])
    h = library.softmax(ops.tanh(x @ w) @ ops.permute(w, order=(-1, -2)))
    program = dovetail.compile(Graph.of({"y": h}), target="cuda")
    rng = np.random.default_rng(0)
    program.bind({"w": rng.normal(size=(384, 384)).astype(bf16.numpy)})
    there = program.to_device({"x": rng.normal(size=(128, 384)).astype(bf16.numpy)})
    first = program.run(there, outputs="device")["y"].numpy().tobytes()
    for _ in range(1000):
        assert program.run(there, outputs="device")["y"].numpy().tobytes() == first


@has_persistent_kernels
def test_a_thousand_replays_of_a_persistent_kernel_are_equal_to_the_bit() -> None:
    """All layers of a decoder are passes of one kernel, whose blocks send words to each other; caches are donated."""
    replay(1000)


def test_a_lost_device_is_an_error_and_the_process_goes_on() -> None:
    said = run(LOST).communicate(timeout=300)[0]
    assert "went on 2" in said, said


def test_a_kernel_whose_blocks_wait_in_vain_says_where() -> None:
    """Blocks send nothing here; what the first of them wrote is read after the context of the device was lost."""
    said = run(WAITING).communicate(timeout=300)[0]
    assert re.search(
        r"the device was lost: .* block \d+ waited in pass 0 for what other blocks send to part \d", said
    ), said


def test_two_processes_share_a_card() -> None:
    processes = [run(SHARED) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert all("same" in text for text in said), said


@has_persistent_kernels
def test_two_processes_with_persistent_kernels_share_a_card() -> None:
    """Blocks of one process wait for each other while the other one has its turn."""
    processes = [run(SHARED_STEP) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert all("same" in text for text in said), said


def test_memory_that_runs_out_is_an_error_and_runs_go_on() -> None:
    x = dovetail.input("x", f32["n", 1 << 20])
    program = dovetail.compile(
        Graph.of({"y": ops.tanh(ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=4096))}), target="cuda"
    )
    _, total = driver().free_memory()
    rows = 2 + total // (4096 << 22)
    with pytest.raises(OutOfMemoryError) as caught:
        program.run({"x": np.zeros((rows, 1 << 20), np.float32)}, outputs="device")
    assert caught.value.needed > caught.value.free > 0
    small = dovetail.compile(Graph.of({"y": ops.tanh(dovetail.input("x", f32["n"]))}), target="cuda")
    np.testing.assert_allclose(small(x=np.ones(100, np.float32))["y"], np.tanh(1.0), rtol=1e-5)


def test_tokens_of_a_decoder_stay_on_the_device() -> None:
    """The greedy tokens are those of the CPU; a step writes its own next inputs."""
    tokens: dict[str, list[int]] = {}
    for target in ("cpu", "cuda"):
        graphs = [llama_cached(SHAPE, seq=seq) for seq in ("s", 1)]
        prefill, step = (dovetail.compile(g, target=target).bind(random_weights(g)) for g in graphs)
        size = (1, SHAPE.kv_heads, 64, SHAPE.width)
        state: Any = {f"{s}_cache.{i}": np.zeros(size, bf16.numpy) for s in "kv" for i in range(SHAPE.layers)}
        state = prefill.to_device(state)
        prompt = {"input_ids": np.array([[3, 14, 15]]), "positions": np.arange(3), "keys": np.arange(3)}
        found = prefill.run({**prefill.to_device(prompt), **state}, outputs="device")
        ids, positions = found["next_ids"], found["next_positions"]
        keys = step.to_device({"keys": np.arange(64)})["keys"]
        chosen = [int(ids.numpy()[0, 0])]
        for _ in range(8):
            step.run({"input_ids": ids, "positions": positions, "keys": keys, **state}, outputs="device")
            chosen.append(int(ids.numpy()[0, 0]))
        tokens[target] = chosen
    assert sum(a == b for a, b in zip(tokens["cpu"], tokens["cuda"], strict=True)) >= 7, tokens


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_language_models_write_what_they_write_on_a_cpu(kind: str, tmp_path: Path) -> None:
    """Greedy tokens are chosen on the card, drawn ones on the host from the same logits, but for rounding."""
    fields, tensors = decoder_file("llama", kind, vocabulary=len(TOKENS), layers=2)
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    on_cpu, on_card = (dovetail.language.LanguageModel(path, target=target) for target in ("cpu", "cuda"))
    greedy = [list(model.tokens([3, 14, 15], max_tokens=24)) for model in (on_cpu, on_card)]
    drawn = [
        list(model.tokens([3, 14], max_tokens=8, sampling=dovetail.language.Sampling(1.0, seed=5)))
        for model in (on_cpu, on_card)
    ]
    likely = [model.log_likelihoods([3, 14, 15, 9, 2, 6]) for model in (on_cpu, on_card)]
    np.testing.assert_allclose(*likely, rtol=1e-3, atol=1e-3)
    assert greedy[0][:12] == greedy[1][:12]
    assert drawn[0][:4] == drawn[1][:4]
