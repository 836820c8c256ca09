"""FLARE's filters as declarations: right, off, of the wrong kind, in the wrong place."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from glasshouse.api.defenses import defenses
from glasshouse.audit.defenses.declared import FAULTS
from glasshouse.cli.defenses import defenses as command
from glasshouse.errors import BadFile
from glasshouse.integrations.flower_settings.local_dp import FlowerConfig, noise_of
from glasshouse.integrations.nvflare_filters.budget import sparse_vector_budget
from glasshouse.integrations.nvflare_filters.declarations import NvflareFilters
from glasshouse.integrations.nvflare_filters.files import read_filters
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.transcript.files import TranscriptWriter, read_transcript
from glasshouse.wire import Architecture, Broadcast, Terms, Update

FILTERS = "nvflare.app_common.filters"
PERCENTILE = {"path": f"{FILTERS}.percentile_privacy.PercentilePrivacy", "args": {"gamma": 0.001}}
SVT = {"path": f"{FILTERS}.svt_privacy.SVTPrivacy", "args": {}}
QUIET = {**SVT, "args": {"epsilon_release": 1.0}}
EXCLUDE = {"path": f"{FILTERS}.exclude_vars.ExcludeVars", "args": {"exclude_vars": "head"}}
STATISTICS = {
    "path": f"{FILTERS}.statistics_privacy_filter.StatisticsPrivacyFilter",
    "args": {"result_cleanser_ids": ["it"]},
}
CLEANSERS = "nvflare.app_common.statistics"
COUNT = {"id": "it", "path": f"{CLEANSERS}.min_count_cleanser.MinCountCleanser", "args": {"min_count": 10}}
BINS = {
    "id": "it",
    "path": f"{CLEANSERS}.histogram_bins_cleanser.HistogramBinsCleanser",
    "args": {"max_bins_percent": 10},
}
EXTREMES = {
    "id": "it",
    "path": f"{CLEANSERS}.min_max_cleanser.AddNoiseToMinMax",
    "args": {"min_noise_level": 0.1, "max_noise_level": 0.3},
}
SHAPES = {"fc1.weight": (32, 64), "fc1.bias": (32,), "head.weight": (10, 32), "head.bias": (10,)}
MODEL = Architecture.of("mlp", (1, 8, 8), 10)


def transcript_of(folder, change, *, kind="delta", without=""):
    """Two rounds of two clients, whose changes are ``change`` of a Gaussian one."""
    writer = TranscriptWriter(folder=folder / "transcript")
    terms = Terms(
        protocol="fedavg", architecture=MODEL, sends=kind, clients=2, cohort=2, batch_size=8,
        local_epochs=1, learning_rate=0.1,
    )  # fmt: skip
    writer.terms(terms)
    model = load("models", "mlp")((1, 8, 8), 10).state_dict()
    generator = torch.Generator().manual_seed(0)
    for number in (0, 1):
        writer.append(Broadcast(round=number, architecture=MODEL, tensors=model, client=None))
        for client in (0, 1):
            tensors = {
                n: 1e-3 * torch.randn(t.shape, generator=generator)
                for n, t in model.items()
                if not without or without not in n
            }
            update = Update(round=number, client=client, kind="delta", tensors=tensors, examples=8, steps=1)
            sent = change(update, Rng.root(10 * number + client))
            if kind == "parameters":
                sent = replace(sent, kind=kind, tensors={n: model[n] + t for n, t in sent.tensors.items()})
            writer.append(sent)
    return folder


def plain(update, rng):
    return update


def percentile(update, rng):
    return create(load("defenses", "percentile"), {"percentile": 10, "bound": 0.001}).update(update, rng=rng)


def job(folder, *filters, components=()):
    path = folder / "config_fed_client.json"
    chains = [{"tasks": ["train"], "filters": list(filters)}]
    path.write_text(
        json.dumps({"executors": [], "task_result_filters": chains, "components": list(components)})
    )
    return path


def site(folder, *filters, components=(), scopes=("site",), default="site"):
    path = folder / "privacy.json"
    made = [{"name": name, "task_result_filters": list(filters)} for name in scopes]
    table = {"scopes": made, "default_scope": default, "components": list(components)}
    path.write_text(json.dumps(table))
    return path


def rulings(run, *files):
    (checked,) = defenses(run, files=files)
    return {(row.defense, row.setting): row for row in checked.rows}


def faults(run, *files):
    return {(r.defense, r.ruling) for r in rulings(run, *files).values() if r.ruling in FAULTS}


def test_a_sites_percentile_that_runs_is_no_fault(tmp_path):
    run = transcript_of(tmp_path, percentile)
    rows = rulings(run, site(tmp_path, PERCENTILE))
    assert faults(run, site(tmp_path, PERCENTILE)) == set()
    assert rows["percentile", "percentile / 100"].ruling == "as declared"
    assert "adds no noise" in rows["PercentilePrivacy", "epsilon per round"].reason


def test_a_percentile_that_does_not_run_is_off(tmp_path):
    run = transcript_of(tmp_path, plain)
    assert ("percentile", "off") in faults(run, site(tmp_path, PERCENTILE))


def test_settings_that_flare_passes_over_are_off(tmp_path):
    run = transcript_of(tmp_path, plain)
    wrong = {**PERCENTILE, "args": {"gamma": -1}}
    assert faults(run, site(tmp_path, wrong)) == {("PercentilePrivacy", "off")}


def test_whole_models_are_cut_themselves(tmp_path):
    run = transcript_of(tmp_path, plain, kind="parameters")
    assert ("PercentilePrivacy", "mis-set") in faults(run, site(tmp_path, PERCENTILE))
    assert ("SVTPrivacy", "mis-set") in faults(run, site(tmp_path, SVT))


def test_a_kind_that_nobody_sends_is_off(tmp_path):
    run = transcript_of(tmp_path, plain)
    for one in (PERCENTILE, SVT, EXCLUDE):
        bound = {**one, "args": {**one["args"], "data_kinds": ["WEIGHTS"]}}
        name = one["path"].rpartition(".")[2]
        assert (name, "off") in faults(run, site(tmp_path, bound))


@pytest.mark.parametrize("one", [PERCENTILE, QUIET, EXCLUDE])
def test_a_filter_of_the_job_is_the_uploaders(tmp_path, one):
    run = transcript_of(tmp_path, percentile, without="head")
    name = one["path"].rpartition(".")[2]
    assert (name, "partly") in faults(run, job(tmp_path, one))


@pytest.mark.parametrize("one", [PERCENTILE, QUIET, EXCLUDE])
def test_a_scope_that_a_job_may_leave_is_partly(tmp_path, one):
    run = transcript_of(tmp_path, percentile, without="head")
    name = one["path"].rpartition(".")[2]
    assert (name, "partly") in faults(run, site(tmp_path, one, scopes=("site", "public")))
    assert (name, "partly") in faults(run, site(tmp_path, one, default="other"))


def test_the_command_fails_at_a_fault(tmp_path, capsys):
    run = transcript_of(tmp_path, percentile)
    assert command(str(run), files=[str(site(tmp_path, PERCENTILE))]) == 0
    assert command(str(run), files=[str(job(tmp_path, PERCENTILE))]) == 1
    assert "partly" in capsys.readouterr().out


def test_svt_at_stock_defaults_spends_what_it_does_not_say(tmp_path):
    run = transcript_of(tmp_path, plain)
    row = rulings(run, site(tmp_path, SVT))["SVTPrivacy", "epsilon per round"]
    numbers = sum(t.numel() for t in load("models", "mlp")((1, 8, 8), 10).state_dict().values())
    assert row.ruling == "mis-set"
    assert row.declared == pytest.approx(np.ceil(numbers * 0.1) * 0.1 + 0.1)
    assert "covers the first two" in row.reason


def flares_svt(update, rng, **settings):
    """The filter's own code on an update."""
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    np.random.seed(rng.child("numpy").numpy().integers(2**31))  # noqa: NPY002 — the filter draws from it
    dxo = DXO(data_kind=DataKind.WEIGHT_DIFF, data={n: t.numpy() for n, t in update.tensors.items()})
    made = SVTPrivacy(**settings).process_dxo(dxo, dxo.to_shareable(), FLContext()).data
    return replace(update, tensors={n: torch.from_numpy(a) for n, a in made.items()})


def test_svt_with_its_release_bounded_runs_and_is_no_fault(tmp_path):
    run = transcript_of(tmp_path, lambda u, r: flares_svt(u, r, epsilon_release=1.0))
    assert faults(run, site(tmp_path, QUIET)) == set()


def test_svt_that_does_not_run_is_off(tmp_path):
    run = transcript_of(tmp_path, plain)
    assert faults(run, site(tmp_path, QUIET)) == {("SVTPrivacy", "off")}


def test_svt_of_other_noise_is_mis_set(tmp_path):
    run = transcript_of(tmp_path, lambda u, r: flares_svt(u, r, epsilon_release=2.0))
    assert faults(run, site(tmp_path, QUIET)) == {("SVTPrivacy", "mis-set")}


@pytest.mark.parametrize("settings", [{}, {"fraction": 0.3, "noise_var": 2.0}, {"epsilon_release": 5.0}])
def test_our_sum_is_that_of_flares_accountant(settings):
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    dxo = DXO(data_kind=DataKind.WEIGHT_DIFF, data={"w": np.random.default_rng(0).normal(size=1000)})
    one = SVTPrivacy(**settings)
    spent = one.process_dxo(dxo, dxo.to_shareable(), FLContext()).meta["svt_privacy_budget"]
    budget = sparse_vector_budget(1000, **settings)
    assert budget.total == pytest.approx(spent["epsilon_total"])
    assert budget.query == pytest.approx(spent["epsilon_query"])
    assert budget.uploads == spent["n_upload"]


def test_excluded_names_that_are_sent_are_off(tmp_path):
    kept = transcript_of(tmp_path / "a", plain)
    gone = transcript_of(tmp_path / "b", plain, without="head")
    assert faults(kept, site(tmp_path, {**EXCLUDE, "args": {"exclude_vars": "fc"}})) == {
        ("ExcludeVars", "off")
    }
    assert faults(gone, site(tmp_path, EXCLUDE)) == set()
    assert faults(gone, site(tmp_path, {**EXCLUDE, "args": {}})) == {("ExcludeVars", "off")}


@pytest.mark.parametrize("cleanser", [COUNT, BINS, EXTREMES])
def test_cleansers_of_statistics(tmp_path, cleanser):
    run = transcript_of(tmp_path, plain)
    name = "StatisticsPrivacyFilter"
    off = {key: {"min_count": 1, "max_bins_percent": 100}.get(key, 0) for key in cleanser["args"]}
    assert faults(run, site(tmp_path, STATISTICS, components=[cleanser])) == set()
    weak = {**cleanser, "args": off}
    assert faults(run, site(tmp_path, STATISTICS, components=[weak])) == {(name, "off")}
    assert faults(run, site(tmp_path, STATISTICS)) == {(name, "off")}
    assert (name, "partly") in faults(run, job(tmp_path, STATISTICS, components=[cleanser]))


def test_an_unknown_filter_is_named(tmp_path):
    run = transcript_of(tmp_path, plain)
    rows = rulings(run, site(tmp_path, {"path": "mine.Noise"}))
    assert rows["Noise", ""].ruling == "cannot be told"


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a": 1}', '{"scopes": [3]}', '{"executors": [], "components": [{}]}']
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"config_fed_client\.json"):
        read_filters(path)


def test_the_sites_filters_act_first(tmp_path):
    run = transcript_of(tmp_path, plain)
    read = read_transcript(run / "transcript", trust_factory=False)
    files = [job(tmp_path, EXCLUDE), site(tmp_path, PERCENTILE)]
    _, rows = NvflareFilters().read(files, read)
    assert rows[0].defense == "PercentilePrivacy"


def test_a_sensitivity_below_the_clipping_norm_is_mis_set(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(
        "[tool.flwr.app.config]\nclipping-norm = 1.0\nsensitivity = 0.0001\nepsilon = 1.0\ndelta = 1e-5\n"
    )
    mechanisms, (row,) = FlowerConfig().read([path], None)
    assert row.ruling == "mis-set"
    assert "1e+04 times less" in row.reason
    assert [m.name for m in mechanisms] == ["clip", "gaussian_noise"]
    assert mechanisms[1].parameters["std"] == pytest.approx(4.845e-4, rel=1e-3)


def test_our_noise_is_that_of_local_dp_mod():
    pytest.importorskip("flwr")
    from flwr.client.mod.localdp_mod import LocalDpMod

    mod = LocalDpMod(clipping_norm=1.0, sensitivity=0.5, epsilon=2.0, delta=1e-5)
    expected = mod.sensitivity * np.sqrt(2 * np.log(1.25 / mod.delta)) / mod.epsilon
    assert noise_of(epsilon=2.0, delta=1e-5, sensitivity=0.5) == pytest.approx(expected)


def test_a_config_without_the_four_settings_is_refused(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.flwr.app.config]\nepsilon = 1.0\n")
    with pytest.raises(BadFile, match="clipping-norm"):
        FlowerConfig().read([path], None)
