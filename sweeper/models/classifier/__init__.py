"""What every parameter of a model is, read off its forward pass at several sizes.

`classify.py` has a model traced at its sizes, and `comparison.py` compares the traces: `roles.py`
tells roles from uses, `fans.py` counts, `growth.py` tells what grows, and `layers.py` matches
layers of models of unlike depth. Each model is built and run without values if possible
(`model_trace.py`, `places.py`), while `dispatch.py` hands every ATen operation to a rule
(`contractions.py`, `elementwise.py`, `indexing.py`). The rules keep in a `TraceState` which
tensors are made of which parameters (`layout.py`) and what these are used for (`uses.py`);
`numbers.py` keeps what a model multiplies by.
"""

from sweeper.models.classifier.classify import (
    Build,
    Comparison,
    classify,
    compare,
    scaled_ops,
    specs_between,
)
from sweeper.models.classifier.comparison import Untraced
from sweeper.models.classifier.model_trace import Tracer

__all__ = [
    "Build",
    "Comparison",
    "Tracer",
    "Untraced",
    "classify",
    "compare",
    "scaled_ops",
    "specs_between",
]
