"""Which rule each ATen operation has: what it does to weights and activations.

A rule takes the ledger and the call, records uses, hands weights on, and returns what more is
known of the outputs than that they are activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sweeper.models.contractions import FACTORS, attend, convolve, multiply
from sweeper.models.elementwise import COPIES, GAINS, copied, normalize, pointwise, reduce
from sweeper.models.ledger import Call, Ledger, Made
from sweeper.models.picks import embed, index, index_select, join, repeat, resize

Rule = Callable[[Ledger, Call], Made]


def unknown(ledger: Ledger, call: Call) -> Made:
    """An operation without a rule: parameters in it are named, activations pass through."""
    ledger.refuse_all(call)
    return Made()


_REDUCTIONS = (
    *("sum", "mean", "norm", "linalg_vector_norm", "prod", "logsumexp", "var", "std"),
    *("var_mean", "std_mean", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin"),
    *("all", "any"),
)
_IN_PLACE_OF = (
    *("_softmax", "_log_softmax", "_safe_softmax", "native_dropout", "bernoulli", "masked_fill"),
    *("copy", "where", "flip", "roll", "tril", "triu", "cumsum", "cumprod"),
    *("_weight_norm_interface", "_prelu_kernel"),
)
"""Not pointwise by their tag, but every output entry stands where its input entry stood."""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, reduce),
    **dict.fromkeys(_IN_PLACE_OF, pointwise),
    **dict.fromkeys(FACTORS, multiply),
    **dict.fromkeys(GAINS, normalize),
    **dict.fromkeys(COPIES, copied),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), embed),
    "convolution": convolve,
    "index": index,
    "index_select": index_select,
    "cat": join,
    "stack": join,
    "repeat": repeat,
    "constant_pad_nd": resize,
}


def rule(func: Any, name: str) -> Rule:
    """The rule of the operation `func`, called `name`."""
    if name in _RULES:
        return _RULES[name]
    if torch.Tag.pointwise in func.tags:
        return pointwise
    if name.startswith(("upsample_", "_upsample_")):
        return resize
    return attend if "attention" in name else unknown
