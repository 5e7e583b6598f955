"""Where a training has come to, on disk: whole, checked, and without code in it."""

from hocket.checkpoint.folder import Manifest as Manifest
from hocket.checkpoint.saver import Checkpoints as Checkpoints
from hocket.checkpoint.saver import Saver as Saver
