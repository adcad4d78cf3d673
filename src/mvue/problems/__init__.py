"""Problems to learn from: simulators with their bounds and classical estimators."""

from ._catalogue import textbook as textbook
from ._covariance import StructuredCovariance as StructuredCovariance
from ._covariance import structured_covariance as structured_covariance
from ._covariance_basis import sparse_basis as sparse_basis
from ._covariance_basis import toeplitz_basis as toeplitz_basis
from ._covariance_networks import CovarianceMLP as CovarianceMLP
from ._covariance_networks import UnrolledCovariance as UnrolledCovariance
from ._rssi_room import RSSIRoom as RSSIRoom
from ._rssi_room import rssi_room as rssi_room
from ._snr import snr as snr
from ._snr import snr_corrected_mle as snr_corrected_mle
from ._snr import snr_mle as snr_mle
from ._textbook import Textbook as Textbook
