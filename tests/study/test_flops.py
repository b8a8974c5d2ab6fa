"""FLOPs of runs, and those that a study keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from sweeper.engine.prepare import prepare
from sweeper.files import read_json, write_json
from sweeper.study.flops import flops_in, flops_of, keep_flops
from sweeper.study.folder import StudyFolder
from sweeper.trial import PluginSpec
from tests.engine import tiny_trials
from tests.specs import spec_of


def test_flops_that_a_driver_counted_are_read_where_no_class_is_imported(tmp_path: Path) -> None:
    spec = tiny_trials.trial().spec
    gone = replace(spec, model=PluginSpec(name="gone.Net"))
    assert math.isnan(flops_in(tmp_path)(gone))
    write_json(StudyFolder(tmp_path).flops, {gone.digest: 5.0})
    keep_flops(tmp_path, [spec, replace(spec, model=PluginSpec(name="lost.Net"))])
    kept = read_json(StudyFolder(tmp_path).flops)
    assert kept == {gone.digest: 5.0, spec.digest: flops_of(spec)}
    assert flops_in(tmp_path)(gone) == 5.0


def test_flops_are_those_of_the_engine() -> None:
    """Those that `compare` counts: 6 a weight and token, and the attention's."""
    data = {"digest": "0" * 64, "classes": 16}
    spec = spec_of({"data": data, "model": {"width": 64, "depth": 1}, "train": {"seq_len": 4}})
    prepared = prepare(spec)
    weights = sum(math.prod(one.shape) for one in prepared.specs if one.role != "embedding")
    assert flops_of(spec) == 10 * 4 * (6 * weights + 12 * 64 * 4)
