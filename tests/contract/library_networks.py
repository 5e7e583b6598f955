"""Networks of transformers for `test_library_networks`, small and with four layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hocket.tree import Tree

VOCAB, LENGTH, IMAGE = 11, 8, 32


RATES = {"p", "drop_prob", "drop_rate"}
"""Attributes with the probability of a dropout."""


@dataclass(frozen=True)
class Case:
    """A network with its inputs.

    Attributes:
        name: Name of its class; its configuration has the same name up to ``For`` or ``Model``.
        fields: Fields of the configuration.
        make_inputs: Function that makes a batch of two inputs.
        refused: Text of the refusal; empty if it is cut.
        uneven: Text of the warning of an uneven cut; empty if there is none.
        config: Name of the class of the configuration, if it differs.
    """

    name: str
    fields: dict[str, Any]
    make_inputs: Callable[[], Tree]
    refused: str = ""
    uneven: str = ""
    config: str = ""

    def build(self) -> nn.Module:
        """Build the network in training mode, without dropout."""
        import transformers  # an optional package

        torch.manual_seed(0)
        stem = self.name.partition("For")[0].partition("Model")[0].partition("LMHead")[0]
        stem = stem.removesuffix("Encoder").removesuffix("MT")
        config = getattr(transformers, self.config or f"{stem}Config")(**self.fields)
        network: nn.Module = getattr(transformers, self.name)(config)
        for weight in network.parameters():
            if not (weight.abs() < 3).all():  # some are not initialized
                nn.init.normal_(weight, std=0.1)
        for module in network.modules():
            for rate in RATES & vars(module).keys():
                setattr(module, rate, 0.0)
        return network.train()


def ids() -> Tensor:
    return torch.randint(3, VOCAB, (2, LENGTH))


def tokens() -> Tree:
    return {"input_ids": ids()}


def masked() -> Tree:
    return tokens() | {"attention_mask": torch.ones(2, LENGTH, dtype=torch.long)}


def padded() -> Tree:
    inputs = masked()
    inputs["attention_mask"][1, -3:] = 0
    return inputs


def image() -> Tree:
    return {"pixel_values": torch.randn(2, 3, IMAGE, IMAGE)}


def padded_pair() -> Tree:
    return padded() | {"decoder_input_ids": ids()}


def sound() -> Tree:
    return {"input_values": torch.randn(2, 600)}


def spectrum() -> Tree:
    return {"input_values": torch.randn(2, 16, 16)}


def speech() -> Tree:
    return {"input_features": torch.randn(2, 8, 16), "decoder_input_ids": ids()}


def series() -> Tree:
    return {"past_values": torch.randn(2, 16, 2)}


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
UNTIED = {"tie_word_embeddings": False, "use_cache": False}
LAYERS = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24)
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = LAYERS | UNDROPPED | SPECIAL | {"vocab_size": VOCAB, "max_position_embeddings": 20}
NARROW = BERT | {"embedding_size": 8}
WINDOWED = BERT | {"attention_window": [4] * 4}
MODERN = BERT | {"cls_token_id": 1, "sep_token_id": 2}
DISTIL = SPECIAL | dict(vocab_size=VOCAB, dim=16, n_layers=4, n_heads=2, hidden_dim=24)
DISTIL |= dict(max_position_embeddings=16, attention_dropout=0.0)
HEADS = dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=16)
LLAMA = LAYERS | SPECIAL | UNTIED | HEADS | {"vocab_size": VOCAB}
SLIDING = LLAMA | {"sliding_window": 4}
EXPERTS = LLAMA | dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2)
EXPERTS |= dict(moe_intermediate_size=8, shared_expert_intermediate_size=8)
OPT = LLAMA | {"ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.0}
GPT2 = SPECIAL | UNTIED | dict(vocab_size=VOCAB, n_layer=4, n_embd=16, n_head=2)
GPT2 |= dict(n_positions=16, attn_pdrop=0.0)
GPTJ = GPT2 | {"rotary_dim": 4}
BLOOM = SPECIAL | UNTIED | {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 4, "n_head": 2}
SPACES = UNTIED | dict(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=4)
MAMBA = SPACES | {"state_size": 4}
MAMBA2 = MAMBA | {"num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
RWKV = SPACES | {"context_length": 16}
BART = SPECIAL | UNTIED | dict(vocab_size=VOCAB, d_model=16, max_position_embeddings=16)
BART |= dict(encoder_layers=4, encoder_attention_heads=2, encoder_ffn_dim=24)
BART |= dict(decoder_layers=4, decoder_attention_heads=2, decoder_ffn_dim=24)
BART |= dict(decoder_start_token_id=1, forced_eos_token_id=None, dropout=0.0)
WHISPER = BART | dict(num_mel_bins=8, max_source_positions=8, max_target_positions=16)
MARIAN = BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB}
T5 = UNTIED | dict(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=4, num_heads=2)
T5 |= dict(dropout_rate=0.0, decoder_start_token_id=0)
WAV2VEC = LAYERS | dict(vocab_size=VOCAB, classifier_proj_size=8, apply_spec_augment=False)
WAV2VEC |= dict(conv_dim=[8, 8], conv_stride=[5, 4], conv_kernel=[10, 8])
WAV2VEC |= dict(num_feat_extract_layers=2, num_conv_pos_embeddings=4)
WAV2VEC |= dict(num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0)
WAV2VEC |= dict(activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0)
VIT = LAYERS | UNDROPPED | {"image_size": IMAGE, "patch_size": 8}
VIT_MAE = VIT | dict(decoder_hidden_size=16, decoder_num_hidden_layers=2)
VIT_MAE |= dict(decoder_num_attention_heads=2, decoder_intermediate_size=24)
SPECTROGRAM = LAYERS | dict(num_mel_bins=16, max_length=16)
SPECTROGRAM |= dict(patch_size=8, frequency_stride=8, time_stride=8)
SWIN = dict(image_size=IMAGE, patch_size=2, window_size=4, drop_path_rate=0.0)
SWIN |= dict(embed_dim=8, depths=[2, 2], num_heads=[2, 2])
SEGFORMER = UNDROPPED | dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1])
SEGFORMER |= dict(num_attention_heads=[1, 1, 2, 2], sr_ratios=[4, 2, 2, 1])
SEGFORMER |= dict(decoder_hidden_size=16, drop_path_rate=0.0)
STAGED = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 2, 1]}
CLIP = dict(text_config=BERT | {"projection_dim": 8}, projection_dim=8)
CLIP |= dict(vision_config=VIT | {"projection_dim": 8})
PATCHES = dict(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4)
PATCHES |= dict(d_model=16, num_hidden_layers=4, num_attention_heads=2, ffn_dim=24)
PATCHES |= dict(num_targets=3)

CLASSIFIER, CAUSAL = "ForSequenceClassification", "ForCausalLM"
PAIRS = "ForConditionalGeneration"

CASES = (
    # Encoders.
    Case("Bert" + CLASSIFIER, BERT, tokens),
    Case("Bert" + CLASSIFIER, BERT, padded),
    Case("Bert" + CLASSIFIER, BERT | {"attn_implementation": "eager"}, padded),
    Case("BertForMaskedLM", BERT, padded),
    Case("Roberta" + CLASSIFIER, BERT, padded),
    Case("XLMRobertaForTokenClassification", BERT, padded),
    Case("DistilBert" + CLASSIFIER, DISTIL, padded),
    Case("ModernBert" + CLASSIFIER, MODERN, padded),
    Case("Electra" + CLASSIFIER, NARROW, padded),
    Case("MPNet" + CLASSIFIER, BERT, padded),
    Case("Albert" + CLASSIFIER, NARROW, padded, uneven="albert.*is called 4 times"),
    Case("DebertaV2" + CLASSIFIER, BERT | {"relative_attention": True}, padded),
    Case("FNet" + CLASSIFIER, BERT, tokens),
    Case("IBert" + CLASSIFIER, BERT, padded),
    Case("Longformer" + CLASSIFIER, WINDOWED, padded, refused="as_strided .* needs numbers"),
    # Decoders.
    Case("GPT2LMHeadModel", GPT2, tokens),
    Case("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": True}, tokens),
    Case("GPTJ" + CAUSAL, GPTJ, padded),
    Case("GPTNeoX" + CAUSAL, LLAMA, padded),
    Case("Bloom" + CAUSAL, BLOOM, padded),
    Case("Llama" + CAUSAL, LLAMA, tokens),
    Case("Llama" + CAUSAL, LLAMA, padded),
    Case("Mistral" + CAUSAL, SLIDING, padded),
    Case("Qwen2" + CAUSAL, LLAMA, padded),
    Case("Qwen3" + CAUSAL, LLAMA, padded),
    Case("Gemma2" + CAUSAL, SLIDING, padded),
    Case("Gemma3" + CAUSAL, SLIDING, padded, config="Gemma3TextConfig"),
    Case("Phi" + CAUSAL, LLAMA, padded),
    Case("OPT" + CAUSAL, OPT, padded),
    # Mixtures of experts, and state spaces.
    Case("Mixtral" + CAUSAL, EXPERTS | {"use_cache": True}, padded),
    Case("Mixtral" + CAUSAL, EXPERTS, tokens),
    Case("Qwen3Moe" + CAUSAL, EXPERTS | {"use_cache": True}, masked),
    Case("Olmoe" + CAUSAL, EXPERTS, padded),
    Case("Mamba" + CAUSAL, MAMBA, tokens),
    Case("Mamba2" + CAUSAL, MAMBA2, padded),
    Case("Rwkv" + CAUSAL, RWKV, tokens, refused="took another path than on the sample"),
    # Encoders with decoders.
    Case("Bart" + PAIRS, BART, padded_pair),
    Case("MarianMTModel", MARIAN, padded_pair),
    Case("T5" + PAIRS, T5, padded_pair),  # cut inside a block of the decoder
    Case("T5EncoderModel", T5, padded),
    Case("Whisper" + PAIRS, WHISPER, speech),
    # Sound and series.
    Case("Wav2Vec2" + CLASSIFIER, WAV2VEC, sound),
    Case("Wav2Vec2" + CLASSIFIER, WAV2VEC | {"layerdrop": 0.1}, sound, uneven="control flow"),
    Case("ASTForAudioClassification", SPECTROGRAM, spectrum),
    Case("PatchTSTForClassification", PATCHES, series),
    # Images.
    Case("ViTForImageClassification", VIT, image),
    Case("BeitForImageClassification", VIT | {"drop_path_rate": 0.0}, image),
    Case("Dinov2ForImageClassification", VIT, image),
    Case("ViTMAEForPreTraining", VIT_MAE, lambda: image() | {"noise": torch.rand(2, 16)}),
    Case("SwinForImageClassification", SWIN, image),
    Case("SegformerForSemanticSegmentation", SEGFORMER, image),
    Case("ResNetForImageClassification", STAGED | {"layer_type": "basic"}, image),
    Case("CLIPModel", CLIP, lambda: padded() | image()),
)
