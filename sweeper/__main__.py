"""`python -m sweeper`."""

import sys
from pathlib import Path

# Python puts the folder worked in first: what lies there is not for libraries to import. Of a
# checkout workers need it.
if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).parents[1]:
    del sys.path[0]

from sweeper.cli.app import main

main()
