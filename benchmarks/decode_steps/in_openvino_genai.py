"""The same by OpenVINO GenAI, which reads GGUF files itself: its pipeline generates, and a streamer reads the clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

ROOM = 4096
"""Tokens that it takes in at once, at most."""
_PRECISIONS: tuple[dict[str, str], ...] = ({}, {"INFERENCE_PRECISION_HINT": "f32"})
"""Its own choice first. On ARM cores that is f16, which not every core compiles."""


class OpenVinoPipeline:
    """A pipeline that forgets its text after each."""

    def __init__(self, path: str, threads: int, is_paged: bool) -> None:
        self.genai: Any = importlib.import_module("openvino_genai")
        self.openvino: Any = importlib.import_module("openvino")
        self.numpy: Any = importlib.import_module("numpy")
        asked: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "ATTENTION_BACKEND": "PA" if is_paged else "SDPA"}
        if is_paged:
            # A prompt that it has seen would be read from its cache.
            asked["scheduler_config"] = scheduler = self.genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens, scheduler.cache_size = ROOM, 1
        self.pipeline, self.precision = self._compiled(path, asked)

    def _compiled(self, path: str, asked: dict[str, Any]) -> tuple[Any, str]:
        reasons: list[str] = []
        for precision in _PRECISIONS:
            try:
                found = self.genai.LLMPipeline(path, "CPU", **asked, **precision)
            except RuntimeError as error:
                reasons.append(" ".join(str(error).split())[-120:])
            else:
                return found, precision.get("INFERENCE_PRECISION_HINT", "")
        raise RuntimeError(reasons[0])

    def ticks(self, tokens: Sequence[int], count: int, clock: Callable[[], float]) -> list[float]:
        """What the clock says at each of the likeliest tokens after some."""
        found: list[float] = []
        running = self.genai.StreamingStatus.RUNNING

        class Streamer(self.genai.StreamerBase):
            """Reads the clock at each token."""

            def write(self, token: object) -> Any:
                found.append(clock())
                return running

            def end(self) -> None:
                """Nothing is left."""

        asked = self.genai.GenerationConfig()
        asked.max_new_tokens, asked.ignore_eos, asked.do_sample = count, True, False
        given = self.openvino.Tensor(self.numpy.array([tokens], self.numpy.int64))
        self.generated = self.pipeline.generate(given, asked, Streamer())
        if len(found) != count:
            raise RuntimeError(f"{len(found)} tokens of {count} came")
        return found

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The likeliest tokens after some."""
        self.ticks(tokens, count, lambda: 0.0)
        return [int(token) for token in self.generated.tokens[0]]


def load(path: str, threads: int, peer: str) -> OpenVinoPipeline:
    """A pipeline of the model in a file."""
    return OpenVinoPipeline(path, threads, peer.endswith("paged"))
