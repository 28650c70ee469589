"""NoisyMix's theory (appendices B and C of the paper), checked with exact expectations in float64.

The check needs no training or sampling. It consists of a small smooth network with its derivatives (`networks`), the losses as finite
sums (`exact`), and their expansions in a small epsilon (`expansions`). `python -m research.noisymix_theory` shows that the
remainders, divided by epsilon^2, converge to 0.

Mixing is at the input, as in the appendix: 1 - lam and both noise levels are multiplied by epsilon. Two equations of the
paper are corrected. Eq. 12 reads h'(p(x) - y) but must be h'(p(x)) - y. Eq. 26 ends in o(epsilon^3), but its proof
(eq. 32) gives o(epsilon^2), which the numbers confirm: the next term is of order epsilon^3.
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
