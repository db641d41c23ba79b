"""The battery: cells that show whether other requests change a request's bits, and who changed them."""

from detent.battery.report import Report, Result
from detent.battery.runner import SETS, Settings, verify

__all__ = ["SETS", "Report", "Result", "Settings", "verify"]
