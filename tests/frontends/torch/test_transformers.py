"""Models of transformers at tiny sizes: their outputs as they are, and attention found."""

# transformers is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from typing import Any

import pytest

import dovetail
from tests.frontends.torch.judge import assert_as_near_as_eager

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.exhaustive]

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, int]]] = {
    "bert": ("BertConfig", "BertModel", {}, {"attention": 2, "linear": 2}),
    "modernbert": ("ModernBertConfig", "ModernBertModel", {"cls_token_id": 1, "sep_token_id": 2}, {}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 2}, {"rope_attention": 2, "swiglu": 2}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4},
        {"rope_attention": 2},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_of_transformers(name: str) -> None:
    config, kind, more, fused = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**SMALL, **more})).eval()
    model.requires_grad_(False)
    ids, mask = torch.randint(3, 64, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if kind.endswith("CausalLM"):
        call["use_cache"] = False
    exact = copy.deepcopy(model).double()
    axes = {0: True, 1: True}
    program = dovetail.compile(model, kwargs=call, dynamic={"input_ids": axes, "attention_mask": axes})
    for length in (6, 9):
        given = {
            **call,
            "input_ids": torch.randint(3, 64, (2, length)),
            "attention_mask": mask[:, :1].repeat(1, length),
        }
        with torch.no_grad():
            wanted, reference = model(**given), exact(**given)
        found = program(**given)
        assert type(found) is type(wanted)
        assert_as_near_as_eager(tuple(found.values()), tuple(wanted.values()), tuple(reference.values()))
    for rule, count in fused.items():
        assert program.report.count(rule) >= count, rule
