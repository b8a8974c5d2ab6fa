"""A training script as transformers' users have it: Trainer, and HfArgumentParser for a .json file.

It knows nothing of sweeper; `README.md` in this folder's parent says what to type.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class ModelArguments:
    """The model's size, and the text."""

    width: int = field(default=64)
    depth: int = field(default=2)
    seq_len: int = field(default=64)
    text: str = field(default=__file__)


class Windows(torch.utils.data.Dataset):
    """Bytes of a file in windows of `seq_len`."""

    def __init__(self, path: str, seq_len: int) -> None:
        """Read the whole file."""
        with open(path, "rb") as file:
            data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        self.rows = data[: len(data) // seq_len * seq_len].view(-1, seq_len)

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """A window, which is its own target: the model shifts it."""
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    """Train from random weights."""
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    sizes, arguments = parser.parse_json_file(sys.argv[1])
    torch.manual_seed(arguments.seed)
    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=256,
            hidden_size=sizes.width,
            num_hidden_layers=sizes.depth,
            num_attention_heads=sizes.width // 16,
            intermediate_size=4 * sizes.width,
            max_position_embeddings=sizes.seq_len,
            use_cache=False,
        )
    )
    data = Windows(sizes.text, sizes.seq_len)
    Trainer(model=model, args=arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
