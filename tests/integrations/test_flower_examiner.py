"""What a received model does is tried in the mode in which it is trained, or in all where that is unknown."""

from pathlib import Path

import pytest
import torch
from torch import nn

from glasshouse.integrations.flower import examiner
from glasshouse.wire import Inspection


@pytest.mark.parametrize(("known", "tried"), [(True, [True]), (False, [True, False])])
def test_all_modes_are_tried_where_the_clients_mode_is_unknown(
    known: bool, tried: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads behind batch normalisation may leak only where its statistics are frozen (decision 0143)."""
    modes, ranges = [], []

    def find_in_evaluation(
        model: nn.Module,
        *_: object,
        honest: object,
        longer: object,
        others: tuple[torch.Tensor, torch.Tensor],
    ) -> Inspection:
        assert callable(longer)
        assert len(others[0]) == len(others[1]) == 0  # all 16 are tried
        modes.append(model.training)
        ranges.append(honest)
        findings = () if model.training else ("it leaks",)
        return Inspection(guard="behaviour", findings=findings, values={})

    monkeypatch.setattr(examiner, "inspect_behaviour", find_in_evaluation)
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    examples = torch.rand(16, 1, 8, 8), torch.arange(16) % 4
    found = examiner.Examiner(folder=tmp_path).examine_behaviour(0, model, examples, is_mode_known=known)
    assert found == ([] if known else ["it leaks"])
    assert modes == tried
    assert len(list(tmp_path.glob("*.honest.json"))) == len(tried) == len(ranges)
    assert model.training
