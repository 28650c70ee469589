"""NoisyMix's theory (appendices B and C of the paper), checked with exact expectations in float64.

Without training or sampling: a small smooth network with its derivatives (`networks`), the losses as finite sums
(`exact`), their expansions in a small epsilon (`expansions`), and `python -m research.noisymix_theory`, which shows that what
is left over, divided by epsilon^2, goes to 0.

Mixing is at the input, as in the appendix: 1 - share, and both noise levels, are multiplied by epsilon. What had to be
corrected in print: eq. 12 reads h'(p(x) - y) and means h'(p(x)) - y; eq. 26 ends in o(epsilon^3), but its proof
(eq. 32) gives, and numbers show, o(epsilon^2): the next term is one in epsilon^3.
"""

from research.noisymix_theory.exact import Noise, Vicinity, jensen_shannon, nfm_loss, stability_loss
from research.noisymix_theory.expansions import (
    adversarial_loss,
    adversarial_radii,
    as_printed,
    bound,
    evaluate,
    proposition_1,
    theorem_1,
    theorem_2,
    theorem_3_regularizer,
)
from research.noisymix_theory.networks import Network, Softmax
