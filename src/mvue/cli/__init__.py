"""The command line: one file for a group of commands, thin doors to the library.

A new command belongs here.
"""

from .main import app as app
from .main import main as main
