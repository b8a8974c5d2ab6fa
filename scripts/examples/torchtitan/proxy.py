"""A Llama of torchtitan's whose learning rate, width and depth are those of sweeper's trial.

    python -m torchtitan.train --module=proxy --config=llama

with this folder in PYTHONPATH. All else is as in torchtitan's debug model, the data too: change it
to yours. Written for torchtitan 0.3.
"""

from dataclasses import replace

from torchtitan.components.optimizer import default_adamw
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common import compute_ffn_hidden_dim as ffn_width
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

import sweeper

HEAD_SIZE = 16


def llama() -> Trainer.Config:
    """The debug model at the trial's sizes and learning rate."""
    trial = sweeper.current_trial()
    config = llama3_debugmodel()
    model = config.model_spec.model
    config.model_spec = replace(
        config.model_spec, model=resized(model, trial.sizes["width"], trial.sizes["depth"])
    )
    config.optimizer = default_adamw(lr=trial.values["eta"])
    return config


def resized(model: llama3.Llama3Model.Config, width: int, depth: int) -> llama3.Llama3Model.Config:
    """The model with other sizes, and its own initial weights."""
    rope = ComplexRoPE.Config(dim=HEAD_SIZE, max_seq_len=131072, theta=500000, scaling="llama")
    return replace(
        model,
        dim=width,
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab_size,
            embedding_dim=width,
            param_init=model.tok_embeddings.param_init,
        ),
        norm=RMSNorm.Config(normalized_shape=width, param_init=model.norm.param_init),
        lm_head=Linear.Config(
            in_features=width,
            out_features=model.vocab_size,
            param_init=llama3._output_linear_init(width),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=depth,
            dim=width,
            n_heads=width // HEAD_SIZE,
            hidden_dim=ffn_width(width, multiple_of=16),
            rope=rope,
            attn_backend="flex",
        ),
    )
