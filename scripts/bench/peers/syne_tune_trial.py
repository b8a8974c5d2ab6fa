"""The program that Syne Tune runs for a trial."""

from __future__ import annotations

import argparse

from common import NAMES, objective
from syne_tune import Reporter

parser = argparse.ArgumentParser()
for name in NAMES:
    parser.add_argument(f"--{name}", type=float)
Reporter()(loss=objective(vars(parser.parse_known_args()[0])), epoch=1)
