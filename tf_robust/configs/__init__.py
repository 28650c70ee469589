"""Configurations: plain dataclasses, whose fields are the flags of the command line and the keyword arguments of `tf_robust.api`."""

from tf_robust.configs.data import DataConfig as DataConfig
from tf_robust.configs.data import WriterConfig as WriterConfig
from tf_robust.configs.evaluation import EvalConfig as EvalConfig
from tf_robust.configs.train import PATH_FLAGS as PATH_FLAGS
from tf_robust.configs.train import UNRECORDED_FLAGS as UNRECORDED_FLAGS
from tf_robust.configs.train import TrainConfig as TrainConfig
