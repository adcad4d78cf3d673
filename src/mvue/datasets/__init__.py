"""Public measurements to learn from, downloaded on first use and kept on this machine."""

from ._fetch import DatasetError as DatasetError
from ._rssi import RSSI as RSSI
from ._rssi import rssi as rssi
