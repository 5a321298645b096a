"""The models that capture must run in one graph: how to build each of them, and how to draw inputs for it.

Add a model by one `@model` function that returns the module and its input factory; it then runs through every test of
`test_models.py` and every benchmark. Weights are random and sizes tiny: what matters is the Python around the kernels.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import programs

Inputs = dict[str, Any]
VOCABULARY = 99


@dataclass(frozen=True)
class Model:
    """`build()` returns a module and its `inputs(batch)`; both draw from torch's random numbers.

    `replaceable` is the path of a submodule, from one tensor to one tensor, which tests replace by another.
    """

    name: str
    replaceable: str
    build: Callable[[], tuple[nn.Module, Callable[[int], Inputs]]]


ZOO: dict[str, Model] = {}


def model(replaceable: str) -> Callable[[Callable], Callable]:
    """Registers a build function under its own name."""
    def register(build: Callable) -> Callable:
        ZOO[build.__name__] = Model(build.__name__, replaceable, build)
        return build
    return register


def tokens(batch: int, length: int = 7) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length))


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 32, 32)


TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"image_size": 32, "patch_size": 8}


@model(replaceable="encoder.layer.1.output.dense")
def bert():
    from transformers import BertConfig, BertModel
    module = BertModel(BertConfig(**TRANSFORMER, **TEXT))
    return module, lambda batch: {"input_ids": tokens(batch), "token_type_ids": tokens(batch) % 2}


@model(replaceable="transformer.h.1.mlp.c_fc")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    module = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4,
                                        bos_token_id=1, eos_token_id=2))
    return module, lambda batch: {"input_ids": tokens(batch)}


@model(replaceable="model.layers.1.mlp.up_proj")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    module = LlamaForCausalLM(LlamaConfig(**TRANSFORMER, **TEXT, num_key_value_heads=2))
    return module, lambda batch: {"input_ids": tokens(batch), "labels": tokens(batch)}


@model(replaceable="decoder.block.1.layer.2.DenseReluDense.wi")
def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    module = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=37, num_layers=2,
                                                 num_decoder_layers=2, num_heads=4, decoder_start_token_id=0))
    return module, lambda batch: {"input_ids": tokens(batch), "decoder_input_ids": tokens(batch, 5)}


@model(replaceable="classifier")
def vit():
    from transformers import ViTConfig, ViTForImageClassification
    module = ViTForImageClassification(ViTConfig(**TRANSFORMER, **VISION, num_labels=5, hidden_dropout_prob=0.1))
    return module, lambda batch: {"pixel_values": images(batch)}


@model(replaceable="classifier.1")
def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification
    module = ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck", num_labels=5,
        problem_type="single_label_classification"))  # otherwise the first call writes it, and the second one differs
    return module, lambda batch: {"pixel_values": images(batch), "labels": torch.randint(0, 5, (batch,))}


@model(replaceable="classifier")
def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification
    module = ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2,
                                                           drop_path_rate=0.1, num_labels=5))
    return module, lambda batch: {"pixel_values": images(batch)}


@model(replaceable="visual_projection")
def clip():
    from transformers import CLIPConfig, CLIPModel
    projection = {"projection_dim": 16}
    module = CLIPModel(CLIPConfig(text_config=TRANSFORMER | TEXT | projection,
                                  vision_config=TRANSFORMER | VISION | projection, **projection))
    return module, lambda batch: {"input_ids": tokens(batch), "pixel_values": images(batch), "return_loss": True}


@model(replaceable="encoder.layers.1.feed_forward.output_dense")
def wav2vec2():
    from transformers import Wav2Vec2Config, Wav2Vec2Model
    module = Wav2Vec2Model(Wav2Vec2Config(
        **TRANSFORMER, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, apply_spec_augment=False, layerdrop=0.0))
    return module, lambda batch: {"input_values": torch.randn(batch, 400)}


@model(replaceable="model.decoder.layers.1.fc2")
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    module = WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37, num_mel_bins=16, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1))
    return module, lambda batch: {"input_features": torch.randn(batch, 16, 40), "decoder_input_ids": tokens(batch)}


@model(replaceable="dropout")
def lstm():
    return programs.UnrolledLSTM(), lambda batch: {"x": torch.randn(batch, 5, 6)}


@model(replaceable="down.1")
def unet():
    return programs.UNet(), lambda batch: {"x": torch.randn(batch, 3, 16, 16)}


@model(replaceable="bottom.2")
def dlrm():
    tables = {"user": 11, "item": 13, "place": 7}

    def inputs(batch: int) -> Inputs:
        sparse = {name: torch.randint(0, size, (batch, 3)) for name, size in tables.items()}
        return {"dense": torch.randn(batch, 5), "sparse": sparse}
    return programs.DLRM(tables), inputs


@model(replaceable="message")
def graph_network():
    def inputs(batch: int) -> Inputs:
        nodes = 4 * batch
        return {"nodes": torch.randn(nodes, 6), "edges": torch.randint(0, nodes, (2, 5 * batch))}
    return programs.GraphNetwork(), inputs


@model(replaceable="discriminator.3")
def gan():
    return programs.GAN(), lambda batch: {"real": torch.randn(batch, 6)}


@model(replaceable="inner")
def diffusion():
    return programs.Diffusion(), lambda batch: {"x": torch.randn(batch, 6)}
