"""Errors and warnings of mvue; the message of each says what to do."""


class SimulatorError(ValueError):
    """The prior or the simulator cannot be used as they are; the message says why."""


class CheckpointError(RuntimeError):
    """A checkpoint belongs to another training run, or none of them can be read."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; training goes on without it."""


class ModelFileError(ValueError):
    """A model file is damaged, of a newer format, or needs something else; the message says so."""


class ExportError(ValueError):
    """An estimator cannot be exported; the message says why."""


class BoundError(ValueError):
    """No bound can be computed for a problem; the message says why."""


class IrregularModelError(BoundError):
    """The Cramér-Rao bound does not hold for a model; the message says why."""


class PoorFitWarning(UserWarning):
    """A trained estimator is biased, or far from the error to expect; it says what to try."""


class ExtrapolationWarning(UserWarning):
    """An estimator is being judged at a value that the prior cannot produce."""


class OutsideTrainingWarning(UserWarning):
    """Some measurements lie far outside of those that an estimator was trained on."""


class NonFiniteWarning(UserWarning):
    """Some simulations or estimates were not finite and were left out."""


class NoiselessWarning(UserWarning):
    """Some numbers of x have no noise while others have, as if theirs had been drawn once."""


class NoRepeatsWarning(UserWarning):
    """No parameter was measured twice, so that noise and signal cannot be told apart."""


class UnresolvedSignalWarning(UserWarning):
    """Some directions of x carry too little signal for the bias weight that was asked for."""


class BiasToleranceWarning(UserWarning):
    """No bias weight brings the bias below the tolerance that was asked for."""


class CoverageWarning(UserWarning):
    """Intervals cover less often than they should somewhere in the range, in simulations."""


class UnreachedPrecisionWarning(UserWarning):
    """Monte Carlo stopped at its largest number of draws, short of the precision asked for."""


class FailedDrawsWarning(NonFiniteWarning):
    """Some measurements could not be simulated and are absent from the data."""


class SimulatedDataError(RuntimeError):
    """A folder holds other data than asked for, or cannot be read; the message says why."""
