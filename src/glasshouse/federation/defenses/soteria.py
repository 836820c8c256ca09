"""Soteria: hide the features of the last representation that reveal most about the input.

Source: Sun et al. 2021, "Soteria: Provable Defense against Privacy Leakage in Federated Learning from
Representation Perspective", arXiv:2012.06043; as used by Li et al. 2022, arXiv:2203.15696, section 3.3.

The representation r(x) is the input of the model's last linear layer. The paper's solution is to prune the
features f with the largest |r_f| / |∂r_f/∂x|₂, hence the smallest score

    score_f = |∂r_f/∂x|₂ / (|r_f| + 1e-10),

and, since the loss is not recomputed, to zero the columns of these features in the gradient of that layer's
weight. As Li et al. 2022 have it (arXiv:2203.15696, section 3.3), the loss is that of what is left of the
representation, so that every layer's gradient changes (``loss = "perturbed"``). Where we differ: an exact
count of columns instead of those below a quantile (the same up to one column and ties); |r_f| where the
authors' code uses r_f, which differs for negative features only; several examples are scored by their mean
(the paper has one). Pixels are in [0, 1]: channels that the model normalises by different scales have equal
weight here.

Breaks when: the last linear layer is not in the update; features depend on dropout or batch statistics
(scores are computed in ``eval()`` mode). For a parameter change over several local steps the scores are those
of the received model, since a client has to compute them beforehand.
"""

import copy
import dataclasses
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.base import CHANGES, NamedDefense, accept, smallest
from glasshouse.interfaces import mean_loss
from glasshouse.limits import Fix
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Update

LOG = logging.getLogger("glasshouse")

SAME = 1e-3
"""Relative difference up to which a gradient computed anew counts as the one that a client would send."""
_ROWS = 16
"""Features per backward pass: the fastest value from 8 to 64 on ResNet-18 with one thread."""


@final
@dataclass(frozen=True, kw_only=True)
class Soteria(NamedDefense):
    """Zero the columns of the ``floor(share * F)`` of F features with the smallest score in the layer.

    Args:
        share: part of the features that is hidden, in [0, 1]; the paper's settings are 0.4 and 0.8.
        layer: name of the defended linear layer; empty: the model's last one.
        loss: ``whole``: of the whole representation, as published; ``perturbed``: of what is left of it, as
            in Li et al. 2022, for a gradient and as the first defence that acts on it.
    """

    card: ClassVar[Card] = Card(
        summary="zero the last layer's gradient columns of the features that tell most about the input",
        source="Sun et al. 2021, arXiv:2012.06043",
    )
    name: ClassVar[str] = "soteria"
    place: ClassVar[Literal["gradient"]] = "gradient"

    share: Annotated[float, Ge(0), Le(1), Fix("0.8 hides 80 %")]
    layer: str = ""
    loss: Literal["whole", "perturbed"] = "whole"

    def gradient(self, update: Update, batch: Batch, model: nn.Module, *, rng: Rng) -> Update:
        """A copy in which the weight of the defended layer has columns of zeros.

        The update is unchanged where no example was used (an empty Poisson step).

        Raises:
            Inapplicable: the model has no such linear layer, or the update does not hold its weight; for a
                perturbed loss, the update is not the gradient of the mean loss.
        """
        del rng  # deterministic
        accept(update, name="soteria", kinds=CHANGES)
        name = defended_layer(model, self.layer)
        key = f"{name}.weight"
        if key not in update.tensors:
            raise Inapplicable(
                "defense 'soteria'",
                needs=f"'{key}' in the update",
                got=f"round {update.round}, client {update.client}: {', '.join(update.tensors)}",
                fix="train the defended layer, or set soteria.layer to one that is trained",
            )
        if len(batch) == 0:
            return update
        hidden = smallest(feature_scores(model, name, batch.inputs), self.share)
        if self.loss == "perturbed":
            return _perturbed(update, batch, model, layer=name, kept=~hidden)
        masked = update.tensors[key].masked_fill(hidden, 0.0)  # (out, F), columns
        return dataclasses.replace(update, tensors={**update.tensors, key: masked})


def _perturbed(update: Update, batch: Batch, model: nn.Module, *, layer: str, kept: Tensor) -> Update:
    """The gradient of the mean loss on the representation where ``kept`` (F,), and zeros elsewhere."""
    whole = _slope(model, batch, update)
    # What is computed anew must be all that the client sends: no earlier defence, no other term of training.
    error = sum(float((update.tensors[n] - t).square().sum()) for n, t in whole.items())
    size = sum(float(t.square().sum()) for t in whole.values())
    if update.kind != "gradient" or error > SAME**2 * size:
        raise Inapplicable(
            "defense 'soteria' with loss = \"perturbed\"",
            needs="the gradient of the mean loss over the client's examples, which it computes anew",
            got=f"round {update.round}, client {update.client}: a {update.kind} that differs from it",
            fix='use protocol fedsgd with plain training and name soteria first, or set loss = "whole"',
        )
    with model.get_submodule(layer).register_forward_pre_hook(lambda _, given: (given[0] * kept,)):
        return dataclasses.replace(update, tensors=_slope(model, batch, update))


def _slope(model: nn.Module, batch: Batch, update: Update) -> dict[str, Tensor]:
    """The gradient of the mean loss, for the parameters in ``update``; leaves the model as it was."""
    parameters = {name: p for name, p in model.named_parameters() if name in update.tensors}
    fixed = [p for p in parameters.values() if not p.requires_grad]
    for p in fixed:
        p.requires_grad_(True)
    try:
        slopes = torch.autograd.grad(mean_loss(model, batch), list(parameters.values()))
    finally:
        for p in fixed:
            p.requires_grad_(False)
    return dict(zip(parameters, slopes, strict=True))


def defended_layer(model: nn.Module, name: str = "") -> str:
    """The checked name of a linear layer; empty ``name``: that of the model's last one.

    Raises:
        Inapplicable: the model has no such layer.
    """
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    layer = name or (linear[-1] if linear else "")
    if layer not in linear:
        raise Inapplicable(
            "defense 'soteria'",
            needs=f"a linear layer '{name}'" if name else "a model with a linear layer",
            got=", ".join(linear) or "none",
            fix="set soteria.layer to one of the model's linear layers",
        )
    return layer


def feature_scores(model: nn.Module, name: str, inputs: Tensor) -> Tensor:
    """``score_f`` of every input feature of the layer called ``name``, averaged over the examples.

    Each example is repeated ``_ROWS`` times in one forward pass; one backward pass then covers as many
    features, which is faster than batching the backward pass of a single copy.
    Batch norm, in ``eval()`` mode a scale and a shift, is first folded into the preceding convolution.

    Args:
        inputs: (B, C, H, W), B >= 1.
        model: with the layer; unchanged on return.
        name: of the layer.

    Returns:
        (F,) float64, never negative.
    """
    work = _prepared(model)
    layer = work.get_submodule(name)
    scores = []
    for x in inputs:
        copies, r = _forward(work, layer, x)
        norms = torch.cat([_norms(copies, r, start) for start in range(0, r.shape[1], _ROWS)])
        scores.append(norms / (r[0].detach().abs().double() + 1e-10))
    return torch.stack(scores).mean(dim=0)


def _prepared(model: nn.Module) -> nn.Module:
    """A copy of the model for the passes."""
    work = _fold_batch_norm(copy.deepcopy(model).eval()).requires_grad_(False)
    prepared: nn.Module = work.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    return prepared


class _Tracer(fx.Tracer):
    """Traces ``forward`` with linear layers, subclasses included, as leaves: one of them is defended."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)


def _fold_batch_norm(model: nn.Module) -> nn.Module:
    """The model with batch norm folded into the preceding convolutions, or ``model`` if tracing fails."""
    try:
        traced = fx.GraphModule(model, _Tracer().trace(model))
    except Exception as error:  # noqa: BLE001 - a user's forward() may raise anything on symbolic inputs
        LOG.debug("Soteria: batch norm stays where it is, as the model cannot be traced: %s", error)
        return model
    modules = dict(traced.named_modules())
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        norm, before = modules.get(str(node.target)), node.prev
        conv = modules.get(str(before.target))
        if not (isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d)):
            continue
        if node.args == (before,) and len(before.users) == calls[before.target] == calls[node.target] == 1:
            traced.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def _forward(model: nn.Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """``_ROWS`` copies of the example, and their representations: (_ROWS, F), equal rows."""
    copies = x.detach().expand(_ROWS, *x.shape).contiguous(memory_format=torch.channels_last)
    entering: list[Tensor] = []
    with torch.enable_grad(), layer.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0])):
        model(copies.requires_grad_())
    if not entering:
        raise Inapplicable(
            "defense 'soteria'",
            needs="a defended layer that the model uses",
            got="a forward pass that does not reach it",
            fix="set soteria.layer to the layer before the logits",
        )
    return copies, entering[-1].flatten(1)


def _norms(copies: Tensor, r: Tensor, start: int) -> Tensor:
    """``|∂r_f/∂x|₂`` of up to ``_ROWS`` features from ``start``, by one backward pass; float64."""
    rows = min(_ROWS, r.shape[1] - start)
    selectors = torch.zeros_like(r)
    selectors[:rows, start : start + rows].fill_diagonal_(1.0)
    (jacobian,) = torch.autograd.grad(r, copies, selectors, retain_graph=True)
    norms: Tensor = jacobian[:rows].flatten(1).double().norm(dim=1)
    return norms
