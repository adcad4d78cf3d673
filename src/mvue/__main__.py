"""``python -m mvue``."""

from .cli import main

main()
