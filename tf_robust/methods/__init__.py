"""Training methods, one per file. `METHODS`: name -> class, method(classifier, **hyperparameters).

The arguments that all methods share, such as `input_range`, `views`, `stages` and `label_smoothing`, are those of `Method`.
"""

from tf_robust.methods.adversarial import AdversarialTraining
from tf_robust.methods.asam import ASAM
from tf_robust.methods.augmax import AugMax
from tf_robust.methods.base import Method
from tf_robust.methods.cross_entropy import CrossEntropy
from tf_robust.methods.cutmix import CutMix
from tf_robust.methods.fcl import FCL
from tf_robust.methods.finetune import L2SP, FineTune, Similarity
from tf_robust.methods.gaussian import ContrastiveGaussian, Gaussian
from tf_robust.methods.input_gradient import InputGradient
from tf_robust.methods.instdis import PIRL, InstDis
from tf_robust.methods.linear_probe import LinearProbe
from tf_robust.methods.moco import MoCo
from tf_robust.methods.noisymix import NFM, AugMix, ManifoldMixup, Mixup, NoisyMix
from tf_robust.methods.puzzlemix import PuzzleMix
from tf_robust.methods.sam import SAM
from tf_robust.methods.simclr import SimCLR
from tf_robust.methods.trades import TRADES

METHODS: dict[str, type[Method]] = {
    "cross_entropy": CrossEntropy,
    "gaussian": Gaussian,
    "contrastive_gaussian": ContrastiveGaussian,
    "fcl": FCL,
    "mixup": Mixup,
    "manifold_mixup": ManifoldMixup,
    "nfm": NFM,
    "augmix": AugMix,
    "noisymix": NoisyMix,
    "cutmix": CutMix,
    "puzzlemix": PuzzleMix,
    "augmax": AugMax,
    "adversarial": AdversarialTraining,
    "trades": TRADES,
    "input_gradient": InputGradient,
    "sam": SAM,
    "asam": ASAM,
    "simclr": SimCLR,
    "moco": MoCo,
    "instdis": InstDis,
    "pirl": PIRL,
    "linear_probe": LinearProbe,
    "finetune": FineTune,
    "l2_sp": L2SP,
    "similarity": Similarity,
}
