"""A network with batch norm learns as anywhere else: its running statistics are learnt and travel."""

import pytest

from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.record import read_record
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.transcript.files import read_transcript

RAW = {
    "name": "statistics",
    "data": {"auxiliary": 60, "heldout": 200, "examples": 64},
    "model": {"name": "convnet", "width": 4},
    "federation": {"protocol": "fedavg", "clients": 2, "rounds": 5, "local_epochs": 2, "batch_size": 16},
    "attacks": ["label_inference"],
    "audit": {"victims": 1, "controls": False},
}


def test_they_travel_where_models_do_and_the_global_model_learns(tmp_path):
    write_resolved(from_dict(RAW), tmp_path / "scenario.toml")
    simulate(Group(folder=str(tmp_path), seed=0))
    (update, *_) = read_transcript(tmp_path / "transcript").rounds[0].updates
    assert "features.bn0.running_mean" in update.buffers
    utility = read_record(tmp_path).utility
    assert utility is not None
    assert utility["value"] > 0.7  # 0.10 where the statistics stay 0 and 1


@pytest.mark.parametrize(
    ("federation", "mode"),
    [
        ({"protocol": "fedavg"}, "training"),
        ({"protocol": "fedsgd", "sends": "parameters"}, "training"),
        ({"protocol": "fedsgd"}, "evaluation"),
        ({"protocol": "fedavg", "training": {"mode": "evaluation"}}, "evaluation"),
        ({"protocol": "fedprox", "options": {"proximal_mu": 0.1}}, "training"),
    ],
)
def test_the_mode_follows_from_what_is_sent_unless_it_is_stated(federation, mode):
    assert (
        from_dict({"name": "mode", "federation": federation, "attacks": ["idlg"]}).federation.local.mode
        == mode
    )
