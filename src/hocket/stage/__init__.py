"""What one stage does with what it gets."""

from hocket.stage.report import Report as Report
from hocket.stage.stage import Stage as Stage
