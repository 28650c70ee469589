"""Classes of methods as users call them: names, arguments in help(), typos, and defaults that do what the name says."""

import inspect
import pydoc

import keras
import pytest
import tensorflow as tf

from tests.conftest import tiny_network
from tests.methods.users_models import X, Y, assert_equal, functional
from tf_robust import data, methods

PUBLIC = (
    "CrossEntropy FCL Gaussian ContrastiveGaussian Mixup ManifoldMixup CutMix PuzzleMix NFM AugMix AugMax NoisyMix InputGradient SAM ASAM "
    "AdversarialTraining TRADES SimCLR MoCo InstDis PIRL LinearProbe FineTune L2SP Similarity"
).split()
OWN = {"AugMix": {"jsd_weight", "batch_norm"}, "Mixup": {"alpha"}, "ManifoldMixup": {"alpha"}}  # beside those of all methods
SHARED = {"seed", "views", "input_range", "from_logits", "embedding", "class_weights", "label_smoothing", "weight_decay"}


def test_the_public_classes_are_those_of_the_table():
    assert {getattr(methods, name) for name in PUBLIC} == set(methods.METHODS.values())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_shown_and_taken(name):
    method = getattr(methods, name)
    arguments = inspect.signature(method).parameters
    assert list(arguments)[0] == "classifier" and SHARED <= set(arguments) and "rows" not in arguments
    assert all(argument.kind is not argument.VAR_KEYWORD for argument in arguments.values())
    text, signature = pydoc.plain(pydoc.render_doc(method)), str(inspect.signature(method))
    assert f"{name}{signature}"[:60] in text
    for argument in arguments:
        assert f"        {argument}: " in text.replace(" |  ", "    "), f"{argument} has no line in help({name})"
    assert name not in OWN or OWN[name] == arguments.keys() - inspect.signature(methods.CrossEntropy).parameters.keys()


def test_arguments_of_a_users_method_are_shown_with_those_of_its_bases():
    class Own(methods.Gaussian):
        """A method.

        Args:
            depth: of it.

        Raises:
            ValueError: never.
        """

        def __init__(self, classifier, *, depth=3, sigma: float = 0.2, **kwargs):
            super().__init__(classifier, sigma=sigma, **kwargs)

    arguments = inspect.signature(Own).parameters
    assert (arguments["depth"].default, arguments["sigma"].default, arguments["weight"].default) == (3, 0.2, 1.0)
    assert Own.__doc__.startswith("A method.") and "\n    depth: of it.\n" in Own.__doc__ and "\n    weight: lambda" in Own.__doc__
    assert Own.__doc__.endswith("Raises:\n    ValueError: never.")
    assert Own(functional(), weight=0.5).weight == 0.5


@pytest.mark.parametrize(
    "name, argument, nearest",
    [
        ("NoisyMix", "jsd", "jsd_weight"),
        ("AugMix", "mixing", None),  # an argument of NoisyMix that AugMix sets
        ("MoCo", "rows", None),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest(name, argument, nearest):
    with pytest.raises(TypeError) as error:
        getattr(methods, name)(None, **{argument: 3.0})
    assert name in str(error.value) and repr(argument) in str(error.value)
    assert nearest is None or f"Did you mean {nearest!r}" in str(error.value)


@pytest.mark.parametrize(
    "name, options",
    [
        ("mixup", {"stages": (0,), "noise": "none", "jsd_weight": 0.0}),
        ("manifold_mixup", {"alpha": 2.0, "noise": "none", "jsd_weight": 0.0}),
        ("nfm", {"additive_noise": 0.4, "multiplicative_noise": 0.2, "sparsity": 0.0, "jsd_weight": 0.0}),
        ("augmix", {"mixing": False, "noise": "none"}),
    ],
)
def test_parts_of_noisymix_are_it_with_these_arguments(name, options):
    part, whole = methods.METHODS[name](tiny_network()), methods.NoisyMix(tiny_network(), **options)
    assert part.default_views == whole.default_views and part.stages == whole.stages and isinstance(part, methods.NoisyMix)
    images = tuple(tf.constant(X[:12] * (1 - 0.1 * number)) for number in range(len(part.default_views)))
    batch = data.Batch(images, tf.constant(Y[:12]), tf.zeros([12], tf.int64))
    for method in (part, whole):
        method.compile(keras.optimizers.SGD(0.1))
        method.train_step(batch)
    assert_equal(part.classifier, whole.classifier, atol=0)


def test_a_users_model_is_mixed_inside():
    assert methods.ManifoldMixup(functional()).stages == (0, 1, 2) and methods.Mixup(functional()).stages == (0,)


@pytest.mark.parametrize("name", ["Gaussian", "FCL", "ContrastiveGaussian"])
def test_the_own_term_of_a_method_counts(name):
    """With its defaults, its gradient is not negligible beside the cross-entropy's."""
    method = getattr(methods, name)(tiny_network())
    batch = data.Batch((tf.constant(X),), tf.constant(Y), tf.zeros([48], tf.int64))
    lengths = []
    for kept in method.term_names:
        loss_terms = lambda batch, training, kept=kept: (
            {one: value * float(one == kept) for one, value in type(method).loss_terms(method, batch, training)[0].items()},
            tf.zeros([48, 3]),
        )
        gradients, *_ = methods.base.Method.gradients(method, batch, loss_terms=loss_terms)
        lengths.append(float(tf.linalg.global_norm(gradients)))
    assert lengths[1] > 0.02 * lengths[0]


def test_fcl_perturbs_a_twelfth_of_the_values():
    assert methods.FCL(functional()).k == 256 // 12
