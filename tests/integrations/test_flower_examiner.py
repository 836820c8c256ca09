"""The guard of a Flower client tries a model in the mode in which it is trained, or in both."""

import pytest
import torch
from torch import nn

from glasshouse.integrations.flower import examiner


@pytest.mark.parametrize(("known", "modes"), [(True, 1), (False, 2)])
def test_a_network_with_statistics_is_tried_in_both_modes_unless_the_mode_is_known(known, modes, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    examples = torch.rand(32, 1, 8, 8), torch.arange(32) % 4
    one = examiner.Examiner(folder=tmp_path)
    judged = one.examine_behaviour(0, model, examples, is_mode_known=known)
    assert judged.verdict == "passed"
    assert judged.coverage == "looked at 8 of 8 tensors, 100 %"
    assert len(list(tmp_path.glob("*.honest.json"))) == modes
    assert model.training
    again = examiner.Examiner(folder=tmp_path).examine_behaviour(0, model, examples, is_mode_known=known)
    assert again.values == judged.values  # ranges come from the files
