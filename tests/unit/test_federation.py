"""The instrument: what clients send, what the server makes of it, and what stays hidden."""

import pytest
import torch
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.secure_sum import SecureSum, quantize_tensors
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.wire import Broadcast, Crafted, Update


def gradient(model, inputs, labels):
    """The definition: gradient of the mean cross-entropy, by autograd."""
    grads = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
    return dict(zip((n for n, _ in model.named_parameters()), grads, strict=True))


def started(made):
    model = models.build(made.setting.terms.architecture)
    models.load(model, made.setting.start)
    return model.eval()


def close(left, right, tolerance=1e-6):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-5, atol=tolerance, msg=name)


def test_a_fedsgd_update_is_the_gradient_of_its_examples():
    result = toy(examples=4)
    for update in result.transcript.rounds[0].updates:
        batch = result.setting.shard(update.client)
        close(dict(update.tensors), gradient(started(result), batch.inputs, batch.labels))
        assert (update.kind, update.examples, update.steps) == ("gradient", 4, 1)


def test_a_fedsgd_round_is_one_step_on_all_examples():
    result = toy(examples=2, learning_rate=0.3)
    model = started(result)
    mean = gradient(model, result.setting.private.inputs, result.setting.private.labels)
    close(dict(result.final), {n: p.detach() - 0.3 * mean[n] for n, p in model.named_parameters()})


@pytest.mark.parametrize("sends", ["delta", "parameters"])
def test_one_full_batch_step_of_fedavg_is_fedsgd(sends):
    once = toy(examples=3, protocol="fedsgd", rounds=2, learning_rate=0.2)
    same = toy(examples=3, protocol="fedavg", rounds=2, learning_rate=0.2, sends=sends)
    close(dict(once.final), dict(same.final), 1e-5)


def test_fedavg_takes_mini_batch_steps_in_epochs():
    result = toy(examples=5, protocol="fedavg", clients=1, batch_size=2, local_epochs=3, learning_rate=0.1)
    (update,) = result.transcript.rounds[0].updates
    assert (update.steps, update.examples) == (9, 5)
    close(dict(result.final), {n: result.setting.start[n] + t for n, t in update.tensors.items()})


def test_weighting_by_size_or_alike():
    """Two clients, one with twice the data: the sum of weights tells which rule is in force."""
    alike = toy(examples=2, weighting="uniform", secure_sum=True).transcript.rounds[0].aggregate
    size = toy(examples=2, weighting="size", secure_sum=True).transcript.rounds[0].aggregate
    assert (alike.weight, size.weight) == (3, 6)


def test_secure_sum_shows_the_sum_and_nothing_else():
    """Of so few clients that they are computed one by one (more: ``test_pooled_rounds.py``)."""
    result = toy(examples=2, clients=3).transcript.rounds[0].updates
    hidden = toy(examples=2, clients=3, secure_sum=True).transcript.rounds[0]
    assert hidden.updates == ()
    assert hidden.aggregate.selected == (0, 1, 2)
    for name, total in hidden.aggregate.tensors.items():
        assert total.dtype == torch.float64
        torch.testing.assert_close(
            total, sum(2 * u.tensors[name].double() for u in result), rtol=1e-12, atol=0
        )


def test_those_who_drop_out_are_named_and_not_summed():
    rounds = toy(clients=6, rounds=8, dropout=0.5, secure_sum=True).transcript.rounds
    dropped = [len(r.aggregate.dropped) for r in rounds]
    assert all(r.aggregate.weight == 6 - d for r, d in zip(rounds, dropped, strict=True))
    assert 0 < sum(dropped) < 6 * 8
    assert max(dropped) < 6


def test_a_cohort_has_its_size_and_changes():
    rounds = toy(clients=10, cohort=3, rounds=6).transcript.rounds
    cohorts = {tuple(sorted(u.client for u in r.updates)) for r in rounds}
    assert {len(c) for c in cohorts} == {3}
    assert len(cohorts) > 1


def test_the_same_seed_gives_the_same_transcript_and_another_does_not():
    one, two, other = toy(rounds=2), toy(rounds=2), toy(rounds=2, seed=1)
    name = "head.weight"
    assert torch.equal(one.final[name], two.final[name])
    assert not torch.equal(one.final[name], other.final[name])


def test_defences_change_what_leaves_the_client():
    result = toy(defenses=[Clip(norm=0.01)])
    norms = [
        torch.cat([t.flatten() for t in u.tensors.values()]).norm()
        for u in result.transcript.rounds[0].updates
    ]
    assert max(norms) <= 0.01 + 1e-6


def test_a_malicious_server_addresses_a_client_and_discards_the_round():
    honest = toy(rounds=2)
    zeros = {n: torch.zeros_like(t) for n, t in honest.setting.start.items()}

    def tamper(number: int) -> Crafted | None:
        if number:
            return None
        architecture = honest.setting.terms.architecture
        mine = Broadcast(round=0, architecture=architecture, tensors=zeros, client=1)
        everybody = Broadcast(round=0, architecture=architecture, tensors=honest.setting.start)
        return Crafted(default=everybody, addressed={1: mine}, applies=False)

    result = toy(rounds=2, tamper=tamper)
    first, second = result.transcript.rounds
    assert {b.client for b in first.broadcasts} == {None, 1}
    by_client = {u.client: u for u in first.updates}
    assert not by_client[1].tensors["features.fc1.weight"].any()  # a zero head sends nothing back
    assert by_client[0].tensors["features.fc1.weight"].any()
    close(dict(second.broadcasts[0].tensors), dict(result.setting.start))


def test_a_client_with_too_little_data_is_refused():
    with pytest.raises(BadValue, match="at least 4 examples"):
        toy(examples=2, batch_size=4)


def test_an_update_that_is_not_finite_is_refused():
    with pytest.raises(BadValue, match="not finite"):
        toy(protocol="fedavg", examples=4, batch_size=1, local_epochs=4, learning_rate=1e30)


def test_quantising_is_unbiased_inside_its_bound_and_clips_outside():
    t = {"w": torch.full((20000,), 0.3)}
    out = quantize_tensors(t, bits=2, bound=1.0, rng=Rng.root(0))["w"]
    assert sorted(set(out.tolist())) == pytest.approx([-1 / 3, 1 / 3])
    assert float(out.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(quantize_tensors({"w": torch.tensor([5.0])}, bits=8, bound=1.0, rng=Rng.root(0))["w"]) == 1.0
    with pytest.raises(BadValue, match="bits"):
        quantize_tensors(t, bits=1, bound=1.0, rng=Rng.root(0))


def test_a_sum_of_nobody_is_refused():
    with pytest.raises(BadValue, match="at least one answer"):
        SecureSum(round=0, selected=(1,)).close()


def test_a_sum_holds_weights_times_updates():
    total = SecureSum(round=0, selected=(0, 1))
    for client, weight in ((0, 2.0), (1, 0.5)):
        update = Update(
            round=0, client=client, kind="gradient", tensors={"w": torch.tensor([3.0])}, examples=1
        )
        total.add(update, weight=weight, rng=Rng.root(0))
    result = total.close()
    assert (float(result.tensors["w"]), result.weight, result.examples) == (7.5, 2.5, 2)
