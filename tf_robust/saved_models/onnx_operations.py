"""Operations that tf2onnx lacks: Erfc, of which TensorFlow's exact GELU is made. Importing this module registers them."""

import numpy as np
from tf2onnx.handler import tf_op
from tf2onnx.utils import make_name


@tf_op("Erfc")
class Erfc:
    """The complementary error function, 1 - erf(x), of float32 tensors."""

    @classmethod
    def version_9(cls, ctx, node, **kwargs):
        """Replaces the node in an ONNX graph of operation set 9, the first with Erf, or later."""
        shapes, dtypes = node.output_shapes, node.output_dtypes
        one = ctx.make_const(make_name("one"), np.array(1, np.float32))
        erf = ctx.make_node("Erf", node.input, name=make_name("erf"))
        ctx.remove_node(node.name)
        ctx.make_node("Sub", [one.output[0], erf.output[0]], name=node.name, outputs=node.output, shapes=shapes, dtypes=dtypes)
