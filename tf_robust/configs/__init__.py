"""Configurations: plain dataclasses, whose fields are the flags of the command line and the keyword arguments of `tf_robust.api`."""

from tf_robust.configs.data import DataConfig as DataConfig
