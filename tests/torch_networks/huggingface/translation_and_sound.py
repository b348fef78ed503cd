"""Encoder-decoders and models of sound of transformers."""

# transformers is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.huggingface.models import ids, model_of, sound_model, translator
from tests.torch_networks.network import Network, collected, network

torch: Any = pytest.importorskip("torch")

_T5_SIZES: dict[str, Any] = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_T5: dict[str, Any] = {**_T5_SIZES, "decoder_start_token_id": 0}
_LAYERS: dict[str, Any] = {
    "vocab_size": 128,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART: dict[str, Any] = {**_LAYERS, "max_position_embeddings": 64, "decoder_start_token_id": 2}
t5 = translator("t5", "T5Config", "T5ForConditionalGeneration", **_T5)
t5_gated = translator("t5_gated", "T5Config", "T5ForConditionalGeneration", feed_forward_proj="gated-gelu", **_T5)
mt5 = translator("mt5", "MT5Config", "MT5ForConditionalGeneration", **_T5)
bart = translator("bart", "BartConfig", "BartForConditionalGeneration", **_BART)
mbart = translator("mbart", "MBartConfig", "MBartForConditionalGeneration", **_BART)
marian = translator("marian", "MarianConfig", "MarianMTModel", decoder_vocab_size=128, **_BART)
pegasus = translator("pegasus", "PegasusConfig", "PegasusForConditionalGeneration", **_BART)
m2m_100 = translator("m2m_100", "M2M100Config", "M2M100ForConditionalGeneration", **_BART)

_WAVES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
wav2vec2 = sound_model("wav2vec2", "Wav2Vec2Config", "Wav2Vec2Model", **_WAVES)
wavlm = sound_model("wavlm", "WavLMConfig", "WavLMModel", num_buckets=16, max_bucket_distance=32, **_WAVES)
hubert = sound_model(
    "hubert", "HubertConfig", "HubertModel", feat_extract_norm="layer", do_stable_layer_norm=True, **_WAVES
)


@network("speech", "transformers")
def whisper() -> Network:
    options = {**_LAYERS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    model = model_of("WhisperConfig", "WhisperForConditionalGeneration", {**options, "decoder_start_token_id": 1})
    call = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids(2, 5), "use_cache": False}
    dynamic = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "target"}}
    return Network(model, (), dynamic, kwargs=call)


@network("speech", "transformers", "a codec with an LSTM")
def encodec() -> Network:
    options = {"num_filters": 4, "hidden_size": 8, "codebook_dim": 8, "codebook_size": 16, "num_lstm_layers": 1}
    model = model_of(
        "EncodecConfig", "EncodecModel", {**options, "target_bandwidths": [24.0], "upsampling_ratios": [4, 2]}
    )
    both = torch.nn.Sequential(model.encoder, model.decoder)
    return Network(both, (torch.randn(2, 1, 64),))


CASES = collected(globals())
