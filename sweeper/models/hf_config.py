"""Models of transformers: which classes, and their configuration at any size."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import gcd
from typing import Any, Literal

from sweeper.errors import BadInput, ConfigError, near_misses, suggest
from sweeper.models.scaled import check_heads, check_sizes

Task = Literal["causal", "masked", "images"]

SUFFIXES: dict[str, Task] = {
    "ForCausalLM": "causal",
    "ForMaskedLM": "masked",
    "ForImageClassification": "images",
}
_MAPPINGS: dict[str, Task] = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "causal",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "images",
}
_ALLOWED = "a class of transformers for *ForCausalLM, *ForMaskedLM or *ForImageClassification"
_OTHER_TASK = "ForConditionalGeneration"
SEE_WHAT_FOLLOWS = ("CpmAntForCausalLM", "XLNetLMHeadModel")
"""Given tokens alone, these look at the ones that they are to predict."""


def library(module: str = "transformers") -> Any:
    """A module of transformers; BadInput where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"model=hf needs transformers 5 or newer: pip install 'sweeper[hf]' ({error})"
        ) from error


@cache
def known_classes() -> dict[str, Task]:
    """Names of all classes that can be trained here, with what for."""
    auto = library("transformers.models.auto.modeling_auto")
    tasks: dict[str, Task] = {}
    for mapping, task in _MAPPINGS.items():
        for value in getattr(auto, mapping).values():
            names = (value,) if isinstance(value, str) else value
            tasks |= {name: task for name in names if not name.endswith(_OTHER_TASK)}
    return tasks


def task_of(name: str) -> Task:
    """What the class `name` of transformers is for; ConfigError for any other."""
    ending = next((task for suffix, task in SUFFIXES.items() if name.endswith(suffix)), None)
    task = known_classes().get(name, ending)
    if task is None or not hasattr(library(), name):
        raise ConfigError("name", name, f"{_ALLOWED}{near_misses(name, known_classes())}")
    if name in SEE_WHAT_FOLLOWS:
        allowed = "a model of the next token: called with tokens alone this one sees what follows"
        raise ConfigError("name", name, allowed)
    return task


# Of each row the first name that a family has counts, its own name for it first. Those of EVERY
# are set beside, where a family has them: encoder and decoder apart.
WIDTH = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HEAD_SIZE = ("head_dim", "attention_head_size", "d_kv", "kv_channels")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "hidden_dim")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
EVERY = {
    DEPTH: ("encoder_layers", "decoder_layers"),
    HEADS: ("encoder_attention_heads", "decoder_attention_heads"),
    FFN: ("encoder_ffn_dim", "decoder_ffn_dim"),
}
OTHER_FFN = ("moe_intermediate_size", "shared_expert_intermediate_size")
"""Further inner widths: they keep the family's ratio to the width."""
MAX_PATCH = 16


@dataclass(frozen=True, kw_only=True)
class HfSizes:
    """What a model's configuration is made from; see `HfModel`."""

    width: int
    depth: int
    classes: int
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    head_size: int = 16
    kv_heads: int | None = None
    ffn_ratio: float | None = None
    tie: bool | None = None
    patch_size: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """`width // head_size`."""
        return self.width // self.head_size

    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the images; ConfigError for other arrays."""
        shape = self.input_shape or ()
        if len(shape) not in (2, 3):
            raise ConfigError("input_shape", list(shape), "images: [channels,] height, width")
        return (1, shape[0], shape[1]) if len(shape) == 2 else (shape[0], shape[1], shape[2])

    def patch(self) -> int:
        """The side of a patch: as given, or the largest divisor up to 16 that leaves 4 a side."""
        _, high, wide = self.image()
        divisors = [n for n in range(1, MAX_PATCH + 1) if gcd(high, wide) % n == 0]
        if self.patch_size is None:
            return max((n for n in divisors if min(high, wide) // n >= 4), default=1)
        if self.patch_size < 1 or gcd(high, wide) % self.patch_size:
            allowed = f"null, or a divisor of the images' sides, {high} x {wide}"
            raise ConfigError("patch_size", self.patch_size, allowed)
        return self.patch_size


class HfFamily:
    """The fields of a configuration class, found by what they mean."""

    def __init__(self, name: str, config_class: Any) -> None:
        """`name` is the model's, for messages; ConfigError where fields cannot be read."""
        if not dataclasses.is_dataclass(config_class):
            allowed = "a model of transformers 5 or newer: its configuration has no fields here"
            raise ConfigError("name", name, allowed)
        self.name, self.map = name, dict(getattr(config_class, "attribute_map", {}))
        self.fields = {each.name: each for each in dataclasses.fields(config_class)}

    def find(self, names: tuple[str, ...]) -> list[str]:
        """The fields that say what `names` say; empty where the family has none."""
        candidates = [self.map.get(name, name) for name in names]
        # `attribute_map` is transformers' own list of a family's names for the common ones.
        first = next((name for name in candidates if name in self.fields), None)
        every = [name for name in EVERY.get(names, ()) if name in self.fields]
        return list(dict.fromkeys([first, *every] if first else every))

    def default(self, name: str) -> Any:
        """A field's default; None where it is made in each case."""
        default = self.fields[name].default
        return None if default is dataclasses.MISSING else default

    def settable(self) -> set[str]:
        """All names that a configuration may set."""
        return {name for name in {*self.fields, *self.map} if not name.startswith("_")}

    def ratio(self, name: str) -> float | None:
        """A field's default over that of the width; None where either has none."""
        width, value = self.default(self.find(WIDTH)[0]), self.default(name)
        return value / width if isinstance(width, int) and isinstance(value, int) else None


def config_fields(family: HfFamily, task: Task, sizes: HfSizes) -> dict[str, Any]:
    """All that the family's configuration is built with; ConfigError names what is refused."""
    check_sizes(width=sizes.width, depth=sizes.depth, head_size=sizes.head_size)
    check_heads(sizes.width, sizes.head_size)
    kv_heads = sizes.kv_heads
    if kv_heads is not None and (kv_heads < 1 or sizes.heads % kv_heads):
        allowed = f"null, or a divisor of the {sizes.heads} heads of width {sizes.width}"
        raise ConfigError("kv_heads", kv_heads, allowed)
    fixed = _sized(family, sizes) | _classes(family, task, sizes)
    for name, value in sizes.config.items():
        key, field_name = f"config.{name}", family.map.get(name, name)
        if field_name in fixed:
            argument = fixed[field_name][0]
            raise ConfigError(key, value, f"it follows from model.{argument}: give that")
        if name not in family.settable():
            close = suggest(name, family.settable())
            hint = close if close.startswith("did") else "see its configuration in transformers"
            raise ConfigError(key, value, f"{family.name} has no such field; {hint}")
    # Later ones win: what suits a small model, then the user's, then what follows from arguments.
    soft = _small_model(family, task, sizes)
    asked = {family.map.get(name, name): value for name, value in sizes.config.items()}
    return soft | asked | {name: value for name, (_, value) in fixed.items()}


Fixed = dict[str, tuple[str, Any]]
"""Fields that follow from arguments: the argument's name, and the value."""


def _sized(family: HfFamily, sizes: HfSizes) -> Fixed:
    widths, depths = family.find(WIDTH), family.find(DEPTH)
    if not widths or not depths:
        what = "width" if not widths else "depth"
        allowed = f"a model with one {what} for all of its layers: its configuration has none"
        raise ConfigError("name", family.name, allowed)
    heads = family.find(HEADS)
    rows: list[tuple[str, Iterable[str], Any]] = [
        ("width", widths, sizes.width),
        ("depth", depths, sizes.depth),
        ("head_size", heads, sizes.heads),
        ("head_size", family.find(HEAD_SIZE), sizes.head_size),
        ("kv_heads", family.find(KV_HEADS) if heads else (), sizes.kv_heads or sizes.heads),
    ]
    fixed = {name: (argument, value) for argument, names, value in rows for name in names}
    if sizes.kv_heads is not None and not family.find(KV_HEADS):
        allowed = f"null: {family.name} has as many as heads"
        raise ConfigError("kv_heads", sizes.kv_heads, allowed)
    return fixed | _inner(family, sizes)


def _inner(family: HfFamily, sizes: HfSizes) -> Fixed:
    names = family.find(FFN)
    if sizes.ffn_ratio is not None and not names:
        raise ConfigError("ffn_ratio", sizes.ffn_ratio, f"null: {family.name} has no such field")
    # At the family's ratio, rounded for one head: times the heads, it grows exactly as the width.
    inner = {
        name: max(1, round(ratio * sizes.head_size)) * sizes.heads
        for name in (*names, *OTHER_FFN)
        if name in family.fields and (ratio := family.ratio(name)) is not None
    }
    if sizes.ffn_ratio is not None:
        # A product that is not whole would be rounded, and grow otherwise than the width.
        asked = float(sizes.ffn_ratio) * sizes.width
        if asked <= 0 or not asked.is_integer():
            allowed = f"null, or a positive ratio that makes {sizes.width} x ratio a whole number"
            raise ConfigError("ffn_ratio", sizes.ffn_ratio, allowed)
        inner |= dict.fromkeys(names, int(asked))
    return {name: ("ffn_ratio", value) for name, value in inner.items()}


def _classes(family: HfFamily, task: Task, sizes: HfSizes) -> Fixed:
    if task != "images":
        # A masked language model has a token more, which stands in the place of hidden ones.
        fixed: Fixed = {"vocab_size": ("data", sizes.classes + (task == "masked"))}
        if sizes.tie is not None:
            fixed["tie_word_embeddings"] = ("tie", sizes.tie)
        return fixed
    if sizes.tie is not None:
        raise ConfigError("tie", sizes.tie, f"null: {family.name} has no embedding of words")
    channels, high, wide = sizes.image()
    fixed = {"num_labels": ("data", sizes.classes)}
    values: Fixed = {
        "num_channels": ("data", channels),
        "patch_size": ("patch_size", sizes.patch()),
        "image_size": ("data", high if high == wide else (high, wide)),
    }
    return fixed | {name: value for name, value in values.items() if name in family.fields}


def _small_model(family: HfFamily, task: Task, sizes: HfSizes) -> dict[str, Any]:
    head_size = sizes.head_size
    of_the_head = {"query_pre_attn_scalar": head_size, "rotary_dim": head_size}
    # Families that are encoders by default would see the tokens that they are to predict.
    wanted = {"use_cache": False, "is_decoder": task == "causal", **of_the_head}
    values: dict[str, Any] = {n: value for n, value in wanted.items() if n in family.fields}
    for name, each in family.fields.items():
        default = family.default(name)
        if "drop" in name and isinstance(default, float) and default > 0:
            values[name] = 0.0
        elif name.endswith("_token_id") and isinstance(default, int):
            # Every token of the data is a word like all others.
            values[name] = None if "None" in str(each.type) else 0
    if isinstance(family.fields.get("embedding_size") and family.default("embedding_size"), int):
        values["embedding_size"] = sizes.width  # a size of its own would not grow
    if sizes.seq_len is not None and "rope_parameters" not in family.fields:
        values |= dict.fromkeys(family.find(POSITIONS), sizes.seq_len)
    return values
