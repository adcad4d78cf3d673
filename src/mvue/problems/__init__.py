"""Problems to learn from: simulators with their bounds and classical estimators.

One file or one folder for a family; a new problem belongs here.
"""

from ._covariance.basis import sparse_basis as sparse_basis
from ._covariance.basis import toeplitz_basis as toeplitz_basis
from ._covariance.networks import CovarianceMLP as CovarianceMLP
from ._covariance.networks import UnrolledCovariance as UnrolledCovariance
from ._covariance.problem import StructuredCovariance as StructuredCovariance
from ._covariance.problem import structured_covariance as structured_covariance
from ._field.catalogue import field as field
from ._field.problem import FieldProblem as FieldProblem
from ._rssi_room import RSSIRoom as RSSIRoom
from ._rssi_room import rssi_room as rssi_room
from ._snr import snr as snr
from ._snr import snr_corrected_mle as snr_corrected_mle
from ._snr import snr_mle as snr_mle
from ._textbook.catalogue import textbook as textbook
from ._textbook.problem import Textbook as Textbook
