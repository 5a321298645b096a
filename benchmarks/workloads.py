"""Models of middling size for `benchmarks.models`: large enough that kernels count, small enough for two cores.

`--scale tiny` takes the models of tests/models as they are, where what counts is the overhead around the kernels.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.models import programs
from tests.models.zoo import ZOO

Inputs = dict[str, Any]
WORKLOADS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {}
WIDTH = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
TEXT = {"vocab_size": 5000, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
VISION = {"image_size": 64, "patch_size": 8}
BATCH, LENGTH = 4, 64
CONVOLUTIONAL = ("resnet", "efficientnet", "convnext", "unet")      # what freezing folds and repacks most
TINY_ONLY = ("graph_network", "gan", "diffusion")


def workload(build: Callable[[], tuple[nn.Module, Inputs]]) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Registers a build function under its own name."""
    WORKLOADS[build.__name__] = build
    return build


def build(name: str, scale: str) -> tuple[nn.Module, Inputs]:
    """The module and its keyword arguments. Raises KeyError for an unknown name."""
    torch.manual_seed(0)
    if scale == "tiny" and name in ZOO:
        module, make = ZOO[name].build()
        return module, make(BATCH)
    module, inputs = WORKLOADS[name]()
    return _calibrated(module, inputs), inputs


def _calibrated(module: nn.Module, inputs: Inputs) -> nn.Module:
    """With the running statistics of its batch normalisations those of the inputs: as they start, deep networks fade to zeros and
    denormals.
    """
    if any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
        module.train()
        for m in module.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.momentum = 0.5
        with torch.no_grad():
            for _ in range(8):
                module(**inputs)
    return module


def inference(program: Callable, inputs: Inputs) -> None:
    with torch.no_grad():
        program(**inputs)


def training_step(program: Callable, inputs: Inputs) -> None:
    outputs = [t for t in tree_leaves(program(**inputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.autograd.backward([t.sum() for t in outputs])


STEPS: dict[str, Callable[[Callable, Inputs], None]] = {"inference": inference, "training": training_step}


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, TEXT["vocab_size"], (BATCH, length))


def images(size: int = 64) -> Tensor:
    return torch.randn(BATCH, 3, size, size)


@workload
def bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertModel
    return BertModel(BertConfig(**WIDTH, **TEXT)), {"input_ids": tokens()}


@workload
def gpt2() -> tuple[nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=5000, n_positions=128, n_embd=256, n_layer=4, n_head=8, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config), {"input_ids": tokens()}


@workload
def llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM
    ids = tokens()
    return LlamaForCausalLM(LlamaConfig(**WIDTH, **TEXT, num_key_value_heads=4)), {"input_ids": ids, "labels": ids}


@workload
def t5() -> tuple[nn.Module, Inputs]:
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=5000, d_model=256, d_kv=32, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=8,
                      decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), {"input_ids": tokens(), "decoder_input_ids": tokens(32)}


@workload
def vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(**WIDTH, **VISION, num_labels=10)), {"pixel_values": images()}


@workload
def resnet() -> tuple[nn.Module, Inputs]:
    from transformers import ResNetConfig, ResNetForImageClassification
    config = ResNetConfig(embedding_size=32, hidden_sizes=[64, 128, 256], depths=[2, 2, 2], layer_type="basic", num_labels=10,
                          problem_type="single_label_classification")
    return ResNetForImageClassification(config), {"pixel_values": images(96)}


@workload
def efficientnet() -> tuple[nn.Module, Inputs]:
    """EfficientNet-B0, the default of its configuration, on smaller images.

    As it is drawn, with weights of normalisations around zero, signals fade to 1e-31. Its pooling has a window of 1280 x 1280,
    of which the image is a corner: the mean of the image, but torch.compile's kernel walks through the whole window.
    """
    from transformers import EfficientNetConfig, EfficientNetForImageClassification
    config = EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, dropout_rate=0.2)
    module = EfficientNetForImageClassification(config)
    module.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
    return module, {"pixel_values": images(128)}


@workload
def convnext() -> tuple[nn.Module, Inputs]:
    from transformers import ConvNextConfig, ConvNextForImageClassification
    config = ConvNextConfig(hidden_sizes=[48, 96, 192], depths=[2, 2, 2], num_stages=3, num_labels=10)
    return ConvNextForImageClassification(config), {"pixel_values": images(96)}


@workload
def clip() -> tuple[nn.Module, Inputs]:
    from transformers import CLIPConfig, CLIPModel
    projection = {"projection_dim": 128}
    config = CLIPConfig(text_config=WIDTH | TEXT | projection, vision_config=WIDTH | VISION | projection, **projection)
    return CLIPModel(config), {"input_ids": tokens(), "pixel_values": images(), "return_loss": True}


@workload
def wav2vec2() -> tuple[nn.Module, Inputs]:
    from transformers import Wav2Vec2Config, Wav2Vec2Model
    config = Wav2Vec2Config(**WIDTH, conv_dim=(64, 64, 64), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3),
                            num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=4, apply_spec_augment=False, layerdrop=0.0)
    return Wav2Vec2Model(config), {"input_values": torch.randn(BATCH, 4000)}


@workload
def whisper() -> tuple[nn.Module, Inputs]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    config = WhisperConfig(vocab_size=5000, d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=8,
                           decoder_attention_heads=8, encoder_ffn_dim=1024, decoder_ffn_dim=1024, num_mel_bins=40,
                           max_source_positions=100, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                           decoder_start_token_id=1)
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(BATCH, 40, 200), "decoder_input_ids": tokens(32)}


class Mixer(nn.Module):
    """An MLP-Mixer: patches (N, P, C) mixed over patches and over channels in turn."""

    class Block(nn.Module):
        def __init__(self, patches: int, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.over_patches = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
            self.over_channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.over_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.over_channels(self.norm2(x))

    def __init__(self, patches: int = 64, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(*(Mixer.Block(patches, width) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x).flatten(2).transpose(1, 2)).mean(1))


@workload
def mixer() -> tuple[nn.Module, Inputs]:
    return Mixer(), {"x": images()}


@workload
def unet() -> tuple[nn.Module, Inputs]:
    return programs.UNet(3, (32, 64)), {"x": images()}


@workload
def dlrm() -> tuple[nn.Module, Inputs]:
    tables = {f"table{i}": 1000 + 10 * i for i in range(8)}
    sparse = {name: torch.randint(0, size, (128, 4)) for name, size in tables.items()}
    return programs.DLRM(tables, dense=13, width=32), {"dense": torch.randn(128, 13), "sparse": sparse}


@workload
def lstm() -> tuple[nn.Module, Inputs]:
    return programs.UnrolledLSTM(64, 128), {"x": torch.randn(16, 24, 64)}


@workload
def gpt() -> tuple[nn.Module, Inputs]:
    """The model of the demo, which imports capture."""
    from examples.train_gpt import GPT, Settings
    settings = Settings()
    ids = torch.randint(0, 97, (settings.batch, settings.context + 1))
    return GPT(97, settings), {"tokens": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
