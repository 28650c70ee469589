"""TensorBoard: hyperparameters, results and profiles."""

import glob

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import plugin_data_pb2

from tests.methods.common import build
from tf_robust import data
from tf_robust.training import callbacks, loop


def events(folder):
    for path in glob.glob(f"{folder}/events*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            yield from event.summary.value


def test_runs_can_be_compared_by_flags_and_results(tmp_path):
    callbacks.TensorBoard(str(tmp_path)).compare({"learning_rate": "0.01", "views": "clean,augmix"}, [{"metric": "un", "value": 0.5}])
    summaries = {value.tag: value for value in events(tmp_path)}
    assert tf.make_ndarray(summaries["measured/un"].tensor) == 0.5
    session = plugin_data_pb2.HParamsPluginData.FromString(summaries["_hparams_/session_start_info"].metadata.plugin_data.content)
    hparams = session.session_start_info.hparams
    assert hparams["learning_rate"].number_value == 0.01 and hparams["views"].string_value == "clean,augmix"


def test_profile_of_a_few_steps(tmp_path, network, source):
    board = callbacks.TensorBoard(str(tmp_path), profile=True)
    loop.fit(build("cross_entropy", network()), source(), epochs=2, batch_size=12, callbacks=[board])
    assert glob.glob(f"{tmp_path}/plugins/profile/*/*")


def test_the_first_batch_is_shown_as_it_is_trained_on(tmp_path, network, source):
    method, board, shown, train = build("cross_entropy", network()), callbacks.TensorBoard(str(tmp_path)), [], source()

    def show(batch):
        shown.append(batch)
        board.show_batch(batch)

    views = [lambda images, seed: images, lambda images, seed: 1 - images]
    loop.fit(method, train, epochs=1, batch_size=12, views=views, on_first_batch=show)
    (first,) = shown
    expected = next(iter(data.training_batches(train, 12, seed=method.seed, views=views)))
    for one, other in zip((*first.views, first.labels), (*expected.views, expected.labels), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {"augmented batch/view 0", "augmented batch/view 1"} <= {value.tag for value in events(tmp_path)}
