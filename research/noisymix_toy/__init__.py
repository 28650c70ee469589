"""NoisyMix's Figures 3 and 4: data in the plane, and the decision boundaries of six methods on them.

A plugin with the data sets `toy` and `toy_band`, a table of six rows in `flags/`, and a command that draws and metrics the boundaries:

    python run_experiment.py --plugin=research.noisymix_toy suite research/noisymix_toy/flags --seeds=0,1,2,3,4 --workdir=runs/toy
    python -m research.noisymix_toy runs/toy
"""

import dataclasses

from tf_robust.data.kinds import DATA_KINDS
from tf_robust.utils.lazy import lazy

_open = lazy("research.noisymix_toy.points:open_toy")
for _name, _help in {
    "toy": "points in the plane, 2 classes",
    "toy_band": "the same points with random labels on a band between the classes, as in the NoisyMix paper",
}.items():
    DATA_KINDS[_name] = dataclasses.replace(DATA_KINDS["digits"], form=_name, help=_help, open=_open)
