"""`python -m ephemera`: the command line."""

from ephemera.cli.main import main

main()
