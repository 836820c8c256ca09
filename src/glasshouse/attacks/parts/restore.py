"""Solve for the columns that Soteria hid in the gradient of the last linear layer (ours).

Shape letters: K classes, F features that enter the last layer, H of them hidden.

One example: the weight's gradient is d rᵀ, with the bias gradient d = p - y, which Soteria leaves whole. For
every class but the label d is p itself, and log p_k = (W r + b)_k - c tells the logits up to one constant.
The shown columns tell their entries of r; the H hidden ones and c solve K - 1 linear equations. With more
classes than hidden features the solution is exact to rounding, and nothing was hidden.

Breaks when: there are not more classes than hidden features, several examples or steps, or no bias gradient;
a second defence changed the update, or coarser rounding than half precision: then the equations contradict
each other. All are noticed, and nothing is restored. In half precision equations and solution hold to that
rounding.
"""

import torch
from torch import Tensor, nn

from glasshouse.attacks.parts.labels import sums
from glasshouse.attacks.parts.replica import Replica
from glasshouse.privacy.marks import ROUNDING, rounding_of

_SMALLEST = 1e-3
"""Singular value, as a share of the largest, from which a direction counts as determined: errors of float32
in the logits grow by its inverse."""


def restore_columns(replica: Replica) -> Tensor | None:
    """The gradient (K, F) of the last layer's weight with the hidden columns; None: they are not determined.

    Args:
        replica: with an update of one example and one step, Soteria its only defence.
    """
    name, gradient = replica.last_linear(), replica.gradient()
    layer, received = replica.model.get_submodule(name), gradient[f"{name}.weight"]
    assert isinstance(layer, nn.Linear)
    if f"{name}.bias" not in gradient or len(received) < replica.classes:  # one logit says too little
        return None
    masked = received.cpu().double()
    weight, bias, slope = (t.cpu().double() for t in (layer.weight, layer.bias, gradient[f"{name}.bias"]))
    hidden, features = (masked == 0).all(0), slope @ masked / slope.square().sum()  # 0 where hidden
    others = slope > torch.finfo(torch.float32).tiny
    others[int(sums(replica).argmin())] = False
    matrix = torch.cat([weight[others][:, hidden], -weight.new_ones(int(others.sum()), 1)], 1)  # of (r, c)
    if len(matrix) <= matrix.shape[1]:  # without an equation to spare, no contradiction would show
        return None
    right_side = slope[others].log() - bias[others] - weight[others] @ features
    solution = torch.linalg.lstsq(matrix, right_side[:, None], rcond=_SMALLEST, driver="gelsd")
    if int(solution.rank) < matrix.shape[1]:
        return None
    features[hidden] = solution.solution[:-1, 0]
    miss = (weight @ features + bias).log_softmax(0)[others] - slope[others].log()
    tolerance = max(ROUNDING, 2 * rounding_of(replica.update.tensors))  # of p on either side
    if not float(miss.norm()) <= tolerance * (len(matrix) - matrix.shape[1]) ** 0.5:  # NaN contradicts, too
        return None
    return torch.outer(slope, features).to(received)
