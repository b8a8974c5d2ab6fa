"""Small models of transformers, and what goes into them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweeper.models.hf import HfModel, masked_positions

transformers = pytest.importorskip("transformers", minversion="5.0")


LLAMAS = ("Llama", "Qwen2", "Qwen3", "Gemma2", "Gemma3", "Mistral", "Mixtral")
FAMILIES = (*LLAMAS, "GPTNeoX", "OPT", "Phi", "Roberta")
CAUSAL = [*(f"{family}ForCausalLM" for family in FAMILIES), "GPT2LMHeadModel"]
MASKED = ["BertForMaskedLM", "RobertaForMaskedLM", "ModernBertForMaskedLM"]
IMAGES = ["ViTForImageClassification", "DeiTForImageClassification"]
EVERY = [*CAUSAL, *MASKED, *IMAGES]
POST_NORM = ("BertForMaskedLM", "RobertaForMaskedLM", "RobertaForCausalLM")
CLASSES, SEQ = 61, 12


def made(name: str, width: int = 32, depth: int = 2, **more: Any) -> HfModel:
    torch.manual_seed(0)
    vision = name in IMAGES
    data: dict[str, Any] = {"input_shape": (8, 8)} if vision else {"seq_len": SEQ}
    sizes = {"classes": 10 if vision else CLASSES, "head_size": 8} | data
    return HfModel(name=name, width=width, depth=depth, **(sizes | more)).double()


def drawn(name: str, **more: Any) -> HfModel:
    """With weights so large that everything in the model matters."""
    model = made(name, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def batch(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    if name in IMAGES:
        return torch.rand(4, 8, 8, dtype=torch.float64), torch.randint(10, (4,))
    tokens = torch.randint(CLASSES, (4, SEQ))
    return tokens[:, :-1], tokens[:, 1:]


@torch.no_grad()
def loss_of(model: nn.Module, name: str) -> float:
    return float(model(*batch(name)))


@torch.no_grad()
def transformers_loss(model: HfModel, name: str, **changed: float) -> float:
    """The loss of a plain transformers model of the same weights, by its own labels.

    Attributes of its modules are multiplied as `changed` says.
    """
    config = copy.deepcopy(model._net.config)
    config._attn_implementation, config._experts_implementation = None, "eager"
    net = getattr(transformers, name)(config).double()
    net.load_state_dict(model.state_dict())
    for module in net.modules():
        for key, factor in changed.items():
            if hasattr(module, key):
                setattr(module, key, factor * getattr(module, key))
    x, y = batch(name)
    if name in IMAGES:
        return float(net(pixel_values=x[:, None], labels=y).loss)
    if name in CAUSAL:
        tokens = torch.cat((x, y[:, -1:]), 1)
        # RoBERTa counts positions by its padding, of which there is none here.
        places = {"position_ids": torch.arange(SEQ)[None]} if "Roberta" in name else {}
        return float(net(input_ids=tokens, labels=tokens, **places).loss)
    hidden = masked_positions(x)
    tokens, labels = x.masked_fill(hidden, CLASSES), x.masked_fill(~hidden, -100)
    places = torch.arange(x.shape[1])[None]
    return float(net(input_ids=tokens, labels=labels, position_ids=places).loss)


GPT_NEO = {"attention_types": [[["global"], 2]]}
