"""Models of Hugging Face transformers at any width and depth, from random weights.

`names.py` says which classes there are, `sizes.py` maps a model's sizes to the fields of its
configuration, `operations.py` puts the factors of a scheme in their places, and `model.py` makes
a model of inputs and targets of it all. transformers is optional: it is imported when a model is
built. Nothing is downloaded.
"""

from sweeper.models.hf.model import HfModel

__all__ = ["HfModel"]
