"""What every parameter of a model is, read off its forward pass at several sizes.

`classify.py` compares a model's sizes. Each is built and run on the meta device (`model_trace.py`),
where `dispatch.py` hands every ATen operation to a rule (`contractions.py`, `elementwise.py`,
`indexing.py`). The rules keep in a `TraceState` which tensors are made of which parameters
(`layout.py`) and what these are used for (`uses.py`). `roles.py` tells roles from uses.
"""

from sweeper.models.classifier.classify import Build, classify, scaled_ops, specs_between

__all__ = ["Build", "classify", "scaled_ops", "specs_between"]
