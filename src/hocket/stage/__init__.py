"""One stage of a network: forward, backward and update."""

from hocket.stage.report import ActionReport as ActionReport
from hocket.stage.stage import Stage as Stage
