"""Encoders and decoders of transformers, at tiny sizes."""
from cases import MORE, OLD, TEXT, USUAL, case, padded, text, tokens, wrap


def bert_config(**more):
    return dict(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32, **more)


@case("bert", lambda b, s, g: {"input_ids": tokens(b, s, g), "attention_mask": padded(b, s), "token_type_ids": tokens(b, s, g) % 2},
      ["last_hidden_state", "pooler_output"], MORE, {**TEXT, "token_type_ids": {0: "batch", 1: "seq"}}, old=OLD)
def bert(attention):
    from transformers import BertConfig, BertModel
    model = BertModel(BertConfig(**bert_config(), attn_implementation=attention))
    return wrap(model, lambda m, i, a, t: m(input_ids=i, attention_mask=a, token_type_ids=t, return_dict=False)[:2], 3)


@case("roberta", text, ["logits"], USUAL, TEXT)
def roberta(attention):
    from transformers import RobertaConfig, RobertaForMaskedLM
    model = RobertaForMaskedLM(RobertaConfig(**bert_config(type_vocab_size=1, pad_token_id=1), attn_implementation=attention))
    return wrap(model, lambda m, i, a: m(input_ids=i, attention_mask=a, return_dict=False)[0], 2)


@case("distilbert", text, ["logits"], USUAL, TEXT, old=OLD)
def distilbert(attention):
    from transformers import DistilBertConfig, DistilBertForSequenceClassification
    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=40, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=32,
                                                                 attn_implementation=attention))
    return wrap(model, lambda m, i, a: m(input_ids=i, attention_mask=a, return_dict=False)[0], 2)


@case("gpt2", text, ["logits"], MORE, TEXT, old=OLD)
def gpt2(attention):
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_inner=64, n_positions=32, attn_implementation=attention))
    return wrap(model, lambda m, i, a: m(input_ids=i, attention_mask=a, use_cache=False, return_dict=False)[0], 2)


def llama_config(**more):
    return {**dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   max_position_embeddings=64), **more}


def causal(model):
    return wrap(model, lambda m, i, a: m(input_ids=i, attention_mask=a, use_cache=False, return_dict=False)[0], 2)


@case("llama", text, ["logits"], MORE, TEXT, old=OLD)
def llama(attention):
    from transformers import LlamaConfig, LlamaForCausalLM
    return causal(LlamaForCausalLM(LlamaConfig(**llama_config(), attn_implementation=attention)))


@case("llama_fp16", text, ["logits"], [("dynamo", 18, "sdpa", True), ("ts", 17, "eager", True)], TEXT, dtype="float16")
def llama_fp16(attention):
    return llama(attention)


def text_left(b, s, g):
    """Padded at the left, as for generation: the first rows of the causal scores of row 1 have no key to look at."""
    feeds = text(b, s, g)
    feeds["attention_mask"] = feeds["attention_mask"].flip(1)
    return feeds


@case("llama_leftpad", text_left, ["logits"], [("ts", 14, "eager", True), ("ts", 17, "sdpa", True), ("dynamo", 18, "eager", True)], TEXT, old=OLD)
def llama_leftpad(attention):
    return llama(attention)


def step(b, s, g, heads=2, d=8, layers=2):
    """One new token after s cached ones; row 1 of the cache is padded at its left."""
    import torch
    mask = torch.ones(b, s + 1, dtype=torch.long)
    if b > 1:
        mask[1, :2] = 0
    feeds = {"input_ids": tokens(b, 1, g), "attention_mask": mask, "position_ids": mask.sum(1, keepdim=True) - 1}
    for i in range(layers):
        for part in ("key", "value"):
            feeds[f"past_{part}_{i}"] = torch.randn(b, heads, s, d, generator=g)
    return feeds


STEP = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}, "position_ids": {0: "batch"},
        **{f"past_{p}_{i}": {0: "batch", 2: "past"} for i in range(2) for p in ("key", "value")}}


@case("llama_step", step, ["logits", "present_key_0", "present_value_0", "present_key_1", "present_value_1"], USUAL, STEP, old=OLD)
def llama_step(attention):
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    def call(m, ids, mask, position, *past):
        cache = DynamicCache()
        for i in range(2):
            cache.update(past[2 * i], past[2 * i + 1], i)
        logits = m(input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True).logits
        layers = [(t.keys, t.values) for t in cache.layers] if hasattr(cache, "layers") else list(zip(cache.key_cache, cache.value_cache))
        return (logits, *layers[0], *layers[1])

    return wrap(LlamaForCausalLM(LlamaConfig(**llama_config(), attn_implementation=attention)), call, 7)


@case("qwen3", text, ["logits"], USUAL, TEXT)
def qwen3(attention):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    return causal(Qwen3ForCausalLM(Qwen3Config(**llama_config(head_dim=8, tie_word_embeddings=True), attn_implementation=attention)))


@case("mistral", text, ["logits"], USUAL, TEXT, sizes=((2, 8), (2, 6), (1, 11), (1, 5)), old=OLD)
def mistral(attention):
    from transformers import MistralConfig, MistralForCausalLM
    return causal(MistralForCausalLM(MistralConfig(**llama_config(sliding_window=4), attn_implementation=attention)))


EAGER = [("dynamo", 18, "eager", True), ("dynamo", 23, "eager", True), ("ts", 14, "eager", True)]


@case("gptj", text, ["logits"], EAGER, TEXT, old=OLD[:1])
def gptj(attention):
    """Interleaved rotation of a part of the head, attention and feed-forward side by side."""
    from transformers import GPTJConfig, GPTJForCausalLM
    return causal(GPTJForCausalLM(GPTJConfig(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_inner=64, n_positions=32, rotary_dim=4,
                                             attn_implementation=attention)))


@case("gpt_neox", text, ["logits"], [("dynamo", 18, "sdpa", True), ("ts", 17, "sdpa", True)], TEXT, old=OLD[:1])
def gpt_neox(attention):
    """Query, key and value of each head side by side in one projection; rotation of a part of the head."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    return causal(GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                                   max_position_embeddings=32, rotary_pct=0.5, attn_implementation=attention)))
