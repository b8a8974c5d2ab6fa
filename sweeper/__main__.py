"""`python -m sweeper`."""

from sweeper.cli.app import main

main()
