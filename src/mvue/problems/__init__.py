"""Problems to learn from: simulators with their bounds and classical estimators."""

from ._catalogue import textbook as textbook
from ._snr import snr as snr
from ._snr import snr_corrected_mle as snr_corrected_mle
from ._snr import snr_mle as snr_mle
from ._textbook import Textbook as Textbook
