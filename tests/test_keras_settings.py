"""Settings of Keras for other work, `KERAS_BACKEND` and keras.json: they are replaced, or named."""

import importlib.util
import json
import os
import sys
import types

import keras
import pytest

import tf_robust
from tf_robust import models
from tf_robust.cli import commands
from tf_robust.cli import main as cli


@pytest.mark.parametrize("where", ["environment", "keras.json", "neither", "damaged"])
def test_keras_is_imported_with_tensorflow(where, tmp_path, monkeypatch, recwarn):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if where == "environment":
        monkeypatch.setenv("KERAS_BACKEND", "jax")
    if where in ("keras.json", "damaged"):
        (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"})[: 99 if where == "keras.json" else 5])
    tf_robust._choose_backend()
    assert os.environ["KERAS_BACKEND"] == "tensorflow"
    named = [str(warning.message) for warning in recwarn if "jax" in str(warning.message) and "KERAS_BACKEND" in str(warning.message)]
    assert len(named) == (where in ("environment", "keras.json"))


def test_keras_with_another_backend_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "jax")))
    with pytest.raises(ImportError, match="Received: jax. Try: KERAS_BACKEND=tensorflow"):
        tf_robust._choose_backend()


@pytest.fixture
def channels_first():
    keras.config.set_image_data_format("channels_first")
    yield
    keras.config.set_image_data_format("channels_last")


def test_channels_first_is_named_by_the_import(channels_first):
    spec = importlib.util.spec_from_file_location("tf_robust.models", models.__file__)
    with pytest.raises(ImportError, match="channels_first.*set_image_data_format"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_command_line_builds_models_with_channels_last(channels_first, monkeypatch):
    formats = []
    monkeypatch.setitem(commands.COMMANDS, "train", lambda *_: formats.append(keras.config.image_data_format()))
    cli.run("train", {}, [])
    assert formats == ["channels_last"]
