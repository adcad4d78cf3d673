"""The run-time type checker of the tests: an int will do where a float is asked for."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
