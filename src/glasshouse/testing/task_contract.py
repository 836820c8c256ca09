"""Contract tests for tasks, shipped for authors of plug-ins.

Subclass :class:`TaskContract` as ``TestMyTask`` and provide the fixtures ``task``, ``labels``, ``outputs``
and ``inputs``; the tests are inherited.
"""

import json
import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.outside.schema import PluginFile, plugin_of
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.testing.fixtures import to_provide

__all__ = ["TaskContract"]


class TaskContract:
    """Contract of a registered task."""

    task = to_provide(Task)
    """A small one: some outputs per example."""
    labels = to_provide(Tensor)
    """At least four valid targets, (B, ...), not all alike."""
    outputs = to_provide(Tensor)
    """Random finite outputs of a network for as many examples, (B, *task.outputs)."""
    inputs = to_provide(Tensor)
    """As many inputs of the network, (B, ...)."""

    def test_it_is_registered_with_a_card_and_a_utility(self, task: Task) -> None:
        """The class registered under its name is this one."""
        assert registry.load("tasks", task.name) is type(task)
        assert registry.card("tasks", task.name).summary
        assert task.utility

    def test_it_comes_back_from_a_file(self, task: Task) -> None:
        """Its fields are plain: as JSON they give an equal task."""
        stated = PluginFile(name=task.name, fields=json.loads(json.dumps(asdict(task))))
        assert plugin_of("tasks", stated, subject="contract", fix="correct it") == task

    def test_targets_are_checked(self, task: Task, labels: Tensor, outputs: Tensor) -> None:
        """Valid and blank targets pass; far too large ones are refused in words."""
        task.check(labels, subject="contract")
        task.check(task.blank(2, tuple(outputs.shape[1:])), subject="contract")
        assert task.accepts(tuple(outputs.shape[1:]))
        with pytest.raises(BadValue):
            task.check(labels[..., None].expand(*labels.shape, 7).float() * math.nan, subject="contract")

    def test_losses_are_one_per_example_and_have_a_gradient(
        self, task: Task, labels: Tensor, outputs: Tensor, inputs: Tensor
    ) -> None:
        """(B,), finite, with a finite gradient that can be differentiated again."""
        points = outputs.clone().requires_grad_()
        losses = task.losses(points, labels, inputs)
        assert losses.shape == (len(labels),)
        (slope,) = torch.autograd.grad(losses.sum(), points, create_graph=True)
        assert bool(slope.isfinite().all())
        torch.autograd.backward(slope.square().sum())

    def test_loss_is_the_mean_or_the_sum_of_losses(
        self, task: Task, labels: Tensor, outputs: Tensor, inputs: Tensor
    ) -> None:
        """The number that training minimises agrees with the losses of the examples."""
        losses = task.losses(outputs, labels, inputs)
        torch.testing.assert_close(task.loss(outputs, labels, inputs), losses.mean())
        if task.separable:
            torch.testing.assert_close(task.loss(outputs, labels, inputs, reduction="sum"), losses.sum())

    def test_examples_do_not_meet_in_a_separable_task(
        self, task: Task, labels: Tensor, outputs: Tensor, inputs: Tensor
    ) -> None:
        """The loss and the score of an example do not depend on the rest of its batch."""
        together = task.scores(outputs, labels, inputs)
        assert together.shape == (len(labels),)
        assert together.dtype == torch.float64
        alone = [task.scores(outputs[i : i + 1], labels[i : i + 1], inputs[i : i + 1]) for i in range(4)]
        torch.testing.assert_close(torch.cat(alone), together[:4])
        if task.separable:
            each = [task.losses(outputs[i : i + 1], labels[i : i + 1], inputs[i : i + 1]) for i in range(4)]
            torch.testing.assert_close(torch.cat(each), task.losses(outputs, labels, inputs)[:4])

    def test_scores_are_in_their_range(
        self, task: Task, labels: Tensor, outputs: Tensor, inputs: Tensor
    ) -> None:
        """Shares are in [0, 1]; the best constant answer is one of them."""
        scores, constant = task.scores(outputs, labels, inputs), task.constant(labels, inputs)
        assert math.isfinite(constant)
        if task.shares:
            assert 0 <= float(scores.min()) <= float(scores.max()) <= 1
            assert 0 <= constant <= 1

    def test_guesses_are_targets(self, task: Task, labels: Tensor) -> None:
        """As many as asked, valid, and the same again for the same stream."""
        one, again = (task.guess(labels, 5, rng=Rng.root(0)) for _ in range(2))
        assert one.shape == (5, *labels.shape[1:])
        task.check(one, subject="contract")
        assert torch.equal(one, again)
