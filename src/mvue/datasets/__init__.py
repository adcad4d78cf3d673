"""Public measurements to learn from, downloaded on first use and kept on this machine.

A new data set belongs here: its source, checksum and reader.
"""

from ._cifar10 import CIFAR10 as CIFAR10
from ._cifar10 import cifar10 as cifar10
from ._fetch import DatasetError as DatasetError
from ._ivim import IVIMResults as IVIMResults
from ._ivim import ivim_results as ivim_results
from ._rssi import RSSI as RSSI
from ._rssi import rssi as rssi
