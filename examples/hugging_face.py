"""Models of transformers as they are: a text encoder, an image classifier, and a decoder with a static cache.

They have few layers and random weights, so that nothing is fetched: put `from_pretrained` in the place of a config.
Needs dovetail-ml[torch] and transformers.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportMissingImports=false

import torch
from transformers import (
    BatchEncoding,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
    ViTConfig,
    ViTForImageClassification,
)

import dovetail

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}


def text_encoder():
    """The dict of a tokeniser goes in, a ModelOutput comes out; batch and length may change."""
    model = BertModel(BertConfig(vocab_size=100, max_position_embeddings=32, **SMALL)).eval()
    encoded = BatchEncoding({"input_ids": torch.randint(0, 100, (2, 9)), "attention_mask": torch.ones(2, 9).long()})
    axes = {0: True, 1: True}
    program = dovetail.compile(model, kwargs=encoded, dynamic={"input_ids": axes, "attention_mask": axes})
    found, wanted = program(**encoded), model(**encoded)
    assert torch.allclose(found.last_hidden_state, wanted.last_hidden_state, atol=1e-5)
    print(f"text encoder: {type(found).__name__}, attention fused {program.report.count('attention')} time")
    longer = {name: torch.cat((t, t), dim=1) for name, t in encoded.items()}
    assert torch.allclose(program(**longer).last_hidden_state, model(**longer).last_hidden_state, atol=1e-5)
    return program


def image_classifier():
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **SMALL)).eval()
    images = torch.randn(2, 3, 32, 32)
    program = dovetail.compile(model, kwargs={"pixel_values": images})
    found, wanted = program(pixel_values=images), model(pixel_values=images)
    assert torch.allclose(found.logits, wanted.logits, atol=1e-5)
    print(f"image classifier: {type(found).__name__}, {tuple(found.logits.shape)}")
    return program


class Step(torch.nn.Module):
    """One token of a decoder: keys and values of the tokens before are arguments, which the step changes in place."""

    def __init__(self, model, length):
        super().__init__()
        self.model, self.length = model, length

    def forward(self, token, position, keys, values):
        cache = StaticCache(config=self.model.config, max_cache_len=self.length)
        for layer, key, value in zip(cache.layers, keys, values, strict=True):
            layer.lazy_initialization(key, value)
            layer.keys, layer.values, layer.cumulative_length = key, value, position.clone()
        return self.model(token, past_key_values=cache, position_ids=position.view(1, 1), use_cache=True).logits


def decoder():
    config = LlamaConfig(vocab_size=100, num_key_value_heads=2, max_position_embeddings=32, **SMALL)
    model = LlamaForCausalLM(config).eval()
    step, length = Step(model, 16).eval(), 16

    def empty():
        shape = (1, config.num_key_value_heads, length, config.hidden_size // config.num_attention_heads)
        return [torch.zeros(shape) for _ in range(config.num_hidden_layers)]

    keys, values = empty(), empty()
    token = torch.tensor([[7]])
    program = dovetail.compile(step, args=(token, torch.tensor(0), empty(), empty()))
    said = []
    for position in range(8):
        said.append(token.item())
        token = program(token, torch.tensor(position), keys, values)[:, -1].argmax(dim=-1, keepdim=True)
    # The model without a cache reads all tokens at once, and says the same.
    wanted = model(torch.tensor([said])).logits.argmax(dim=-1)[0].tolist()
    assert [*said[1:], token.item()] == wanted
    print(f"decoder: 8 tokens, one step each; {len(program.graph.donated)} caches written in place")
    return program


def main():
    torch.manual_seed(0)
    with torch.no_grad():
        return text_encoder(), image_classifier(), decoder()


if __name__ == "__main__":
    main()
