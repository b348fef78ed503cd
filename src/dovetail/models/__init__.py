"""Whole models written in blocks: what the demo, the benchmarks and many tests compile."""

from dovetail.models.bert import BertShape, bert
from dovetail.models.checkpoints import bert_shape, bert_weights
from dovetail.models.llama import LlamaShape, llama, llama_step
from dovetail.models.llama_cache import llama_cached
from dovetail.models.resnet import ResnetShape, resnet
from dovetail.models.unet import unet
from dovetail.models.weights import random_weights

__all__ = [
    "BertShape",
    "LlamaShape",
    "ResnetShape",
    "bert",
    "bert_shape",
    "bert_weights",
    "llama",
    "llama_cached",
    "llama_step",
    "random_weights",
    "resnet",
    "unet",
]
