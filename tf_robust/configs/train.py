"""Configuration of a training."""

import dataclasses
import typing

PATH_FLAGS = ("data_dir", "download", "corrupted_dir", "frost_dir", "data_service")  # flags with locations
UNRECORDED_FLAGS = (*PATH_FLAGS, "tracker", "per_image")  # not in flags.txt


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Training configuration shared by all methods. Hyperparameters of methods and augmentations are separate, as is the data.

    Args:
        stylized_dir: folder of stylized images, one subfolder per class, to train on in addition to the natural ones; empty: none.
        model: classifier; `tf-robust list models` has the names. Or applications:NAME (random weights, or --init_from=imagenet),
            keras_hub:PRESET (its weights), module:function (a keras.Model; parameters input_shape and num_classes are passed).
        resize: side in pixels to which the model itself resizes images (antialiased, gray ones to three channels), for encoders that
            were trained on other images; 0: unchanged.
        init_from: initial encoder: workdir or SavedModel of this package, where {seed} is replaced by the run's seed, as in
            runs/urrl_table1/urrl_encoder/seed_{seed}; or a Keras file (.keras, .weights.h5, .h5); or zoo:NAME; or imagenet, the
            pretrained weights of applications:NAME. Empty: random weights.
        init_from_row: the same, as a row of the suite; the run with the same seed is used (suite).
        init_head: initialize the logits too, which then must have the same classes.
        method: training method; `tf-robust list methods` has the names.
        augmentations: applied in the given order; those with a * in `tf-robust list views`.
        sampling: shuffled (an epoch has every image once) or balanced (an epoch has as many images of every class, those of rare classes
            several times).
        class_weights: factor of the cross-entropy of each class's label: balanced (inversely proportional to the class's frequency), or
            one number per class: W,W,...; empty: all 1.
        weight_decay: weight_decay * w is added to the gradient of every trainable variable w, including batch norm's and biases (L2
            regularization by weight_decay / 2 |w|^2, as in PyTorch's SGD), unless a method states otherwise.
        label_smoothing: part of each label's probability that the cross-entropy spreads evenly over all classes, in [0, 1).
        views: inputs of the method, made from the augmented image; `tf-robust list views` has the names. Empty: the method's own, such as
            clean,augmix,augmix of noisymix.
        epochs: passes over the training set.
        batch_size: examples per step, over all replicas.
        optimizer: adam, sgd or lars.
        momentum: momentum of sgd and lars.
        nesterov: Nesterov momentum in sgd and lars.
        ema: evaluate and export an exponential moving average of the weights (and of batch norm's statistics) with this momentum, such as
            0.999; 0: the weights of the last step.
        global_clipnorm: largest norm of the gradient of all weights together, to which a larger one is scaled; 0: not limited.
        select: metric on validation images by which the best epoch is chosen, such as clean, un or corruptions/mean15; its weights are
            exported. Empty: the last epoch, or clean with early_stopping.
        select_every: epochs between two measurements for select.
        select_images: number of validation images to evaluate select on, a fixed stratified subset; 0: all.
        early_stopping: epochs without a better value of select after which training stops; 0: train all epochs.
        learning_rate: peak learning rate.
        schedule: schedule of the learning rate.
        learning_rate_warmup_epochs: epochs of the initial linear ramp of the learning rate.
        decay_rate: factor after each epoch (schedule exponential).
        decay_epochs: epochs of the steps (schedule steps).
        decay_factor: factor at each step (schedule steps).
        steps_per_execution: training steps per call of the compiled function.
        profile: profile a few steps for TensorBoard.
        tracker: where runs are recorded besides TensorBoard's files: wandb, mlflow, configured by their environment variables.
        jit_compile: compile the gradients of a step with XLA (not with puzzlemix).
        mixed_precision: compute in bfloat16, keep weights in float32.
        strategy: devices: auto (all GPUs of this machine), mirrored (the same, or all logical CPUs), multi_worker (those of all
            workers in TF_CONFIG).
        data_service: HOST:PORT of servers that make the batches, each a part of them; empty: this process makes them. Of `tf-robust serve`:
            address of this server.
        synchronize_batch_norm: on several devices, compute batch norm's statistics over the global batch.
    """

    stylized_dir: str = ""
    model: str = "lenet"
    resize: int = 0
    init_from: str = ""
    init_from_row: str = ""
    init_head: bool = False
    method: str = "cross_entropy"
    augmentations: tuple[str, ...] = ()
    sampling: typing.Literal["shuffled", "balanced"] = "shuffled"
    class_weights: str = ""
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    views: tuple[str, ...] = ()
    epochs: int = 10
    batch_size: int = 128
    optimizer: typing.Literal["adam", "sgd", "lars"] = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    ema: float = 0.0
    global_clipnorm: float = 0.0
    select: str = ""
    select_every: int = 1
    select_images: int = 500
    early_stopping: int = 0
    learning_rate: float = 0.01
    schedule: typing.Literal["constant", "exponential", "steps", "cosine"] = "exponential"
    learning_rate_warmup_epochs: float = 0.0
    decay_rate: float = 0.89
    decay_epochs: tuple[float, ...] = ()
    decay_factor: float = 0.1
    steps_per_execution: int = 20
    profile: bool = False
    tracker: tuple[str, ...] = ()
    jit_compile: bool = False
    mixed_precision: bool = False
    strategy: typing.Literal["auto", "mirrored", "multi_worker"] = "auto"
    data_service: tuple[str, ...] = ()
    synchronize_batch_norm: bool = False

    def __post_init__(self):
        if self.init_from and self.init_from_row:
            raise ValueError("Expected init_from or init_from_row. Received: both")
        least = {"select_images": 0, "early_stopping": 0, "epochs": 1, "batch_size": 1, "steps_per_execution": 1, "select_every": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ValueError(f"Expected {name} >= {number}. Received: {getattr(self, name)}")
