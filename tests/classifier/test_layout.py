"""Which dimension of a parameter a view's dimensions stem from, against entries that know it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweeper.classifier.state import FOREIGN, ParamLayout

STEPS = ("transpose", "narrow", "select", "split", "merge", "copy", "expand")


def step(x: Tensor, name: str, draw: st.DrawFn) -> Tensor:
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
    if name == "transpose" and x.dim() > 1:
        return x.transpose(dim, (dim + 1) % x.dim())
    if name == "narrow" and x.dim() and x.size(dim) > 1:
        return x.narrow(dim, 1, x.size(dim) - 1)
    if name == "select" and x.dim() > 1:
        return x.select(dim, 0)
    if name == "split" and x.dim() and x.size(dim) % 2 == 0:
        return x.unflatten(dim, (2, -1))
    if name == "merge" and x.dim() > 1:
        return x.flatten(0, 1)
    if name == "copy":
        return x.clone(memory_format=torch.contiguous_format)
    return x.unsqueeze(dim).expand(*x.shape[:dim], 3, *x.shape[dim:]) if name == "expand" else x


def cut_anew(steps: list[str]) -> bool:
    """Whether a merged dimension may have been cut elsewhere than where it was joined."""
    after = steps[steps.index("merge") :] if "merge" in steps else []
    return "narrow" in after or "split" in after


@settings(max_examples=100)
@given(st.data())
def test_views_are_read_back(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3))
    names = data.draw(st.lists(st.sampled_from(STEPS), max_size=5))
    # Every entry holds its own number, so its place in the parameter can be worked out.
    x = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    layout = ParamLayout.of_parameter("w", x)
    for place, name in enumerate(names):
        y = step(x, name, data.draw)
        if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            mapping = layout.mapping(x)
            if mapping is None:
                assert cut_anew(names[:place]), (shape, names)
                return
            if y.shape != x.shape:  # a merge that had to copy: as its clone, then the view
                z = x.clone(memory_format=torch.contiguous_format)
                layout = ParamLayout("w").placed(mapping, z)
            else:
                layout = ParamLayout("w").placed(mapping, y)
        x = y
    mapping = layout.mapping(x)
    if mapping is None:
        assert cut_anew(names), (shape, names)
        return
    places = torch.stack(torch.unravel_index(x, shape)) if x.dim() else None
    for i, components in enumerate(mapping):
        stems = {dim for dim, _ in components} - {FOREIGN}
        for dim in range(len(shape)):
            along = places.movedim(i + 1, 0)[:, dim]
            moves = bool((along != along[:1]).any())
            assert moves == (dim in stems), (shape, names, mapping, i, dim)
