"""Callbacks of `fit`: the protocol, and those that come with Hocket."""

from hocket.callbacks.averaged_weights import AveragedWeights as AveragedWeights
from hocket.callbacks.best_epoch import BestWeights as BestWeights
from hocket.callbacks.best_epoch import EarlyStopping as EarlyStopping
from hocket.callbacks.mlflow_tracker import MLflow as MLflow
from hocket.callbacks.trackers import Tracker as Tracker
from hocket.callbacks.trackers import Tracking as Tracking
from hocket.callbacks.wandb_tracker import WandB as WandB
from hocket.training.callback import Callback as Callback
from hocket.training.callback import TrainerView as TrainerView
