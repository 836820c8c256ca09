"""Scale-MIA in the first rounds of a federation: cost for the model, and recovery rate of every round.

Run with ``python -m benchmarks.scale_mia_rounds``. FedAvg under secure sums, 8 clients with 250 CIFAR-10
train images each, one local epoch of ten batches with momentum; the server attacks no round, the first one,
or the first five, and discards the aggregates of attacked rounds. Accuracy is measured on the 2,000 test
images. The other 8,000 train images are the attacker's.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.scale_mia import CIFAR, score
from glasshouse.attacks.linear.scale_mia.attack import ScaleMia
from glasshouse.attacks.linear.scale_mia.autoencoder import AutoencoderTraining
from glasshouse.data.sources import load as load_data
from glasshouse.federation.protocols.fedavg import FedAvg
from glasshouse.federation.setting import Setting
from glasshouse.metrics.statistics.shares import proportion_interval
from glasshouse.models import build as models
from glasshouse.models.fit import share_right
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Crafted, Terms

CLIENTS, EACH, BATCH = 8, 250, 25
SHOWN = 10
"""Number of rounds between printed accuracies."""


def federation(attacked: int, rounds: int, *, seed: int, data: Mapping[str, Batch]) -> dict[str, Any]:
    """One run: final accuracy, and the blind rate of every attacked round."""
    architecture = Architecture.of("scale_mia_cnn", (3, 32, 32), 10)
    terms = Terms(
        architecture=architecture,
        clients=CLIENTS,
        cohort=CLIENTS,
        sends="delta",
        protocol="fedavg",
        batch_size=BATCH,
        learning_rate=0.05,
        optimizer=Optimizer(momentum=0.9),
        secure_sum=True,
    )
    rng = Rng.root(seed, salt="rounds")
    private = data["private"].pick(torch.randperm(len(data["private"]), generator=rng.child("deal").torch()))
    setting = Setting(
        terms=terms,
        rounds=rounds,
        private=private,
        shards=tuple(torch.arange(CLIENTS * EACH).split(EACH)),
        start=models.state(models.build(architecture, rng=rng.child("model"))),
        build=models.build,
    )
    attack, grants = (
        ScaleMia(training=AutoencoderTraining(steps=1500), local_steps=EACH // BATCH),
        Grants(auxiliary=data["auxiliary"]),
    )
    result = range(SHOWN, rounds, SHOWN)
    keep = Keep(updates=frozenset(range(attacked)), broadcasts=frozenset({*range(attacked), *result}))
    log = Log(terms=terms, keep=keep)
    memory: dict[str, Tensor] = {}

    def tamper(number: int) -> Crafted | None:
        if number >= attacked:
            return None
        honest = Broadcast(round=number, architecture=architecture, tensors=setting.start)
        view = View(
            terms=terms, threat=Threat(), rounds=(RoundView(round=number, broadcast=honest),), grants=grants
        )
        crafted = attack.craft(view, rng=rng.child(f"craft/{number}"))
        assert crafted is not None
        memory.update(crafted.memory)
        return crafted

    final = FedAvg().play(setting, recorder=Recorder(log), rng=rng.child("federation"), tamper=tamper)
    model, right = models.build(architecture), {}
    starts = {r.round: r.broadcasts[0].tensors for r in log.transcript().rounds if r.round in result}
    for number, tensors in {**starts, rounds: final}.items():
        model.load_state_dict(dict(tensors))
        hits = share_right(model, data["test"])
        interval = proportion_interval(int(hits.sum()), len(hits))
        right[number] = [round(v, 4) for v in (interval.value, interval.low, interval.high)]
    rates = []
    for number in range(attacked):
        view = cut(
            log.transcript(),
            threat=Threat(),
            grants=grants,
            own={},
            memory=memory,
            rounds=(number,),
            client=None,
        )
        owners = torch.arange(CLIENTS * EACH) // EACH
        rates.append(round(score(attack.run(view, rng=rng), private, owners)["blind"], 4))
    return {
        "attacked": attacked,
        "rounds": rounds,
        "seed": seed,
        "accuracy": right,
        "blind": rates,
    }


def main() -> None:
    """Print one line of JSON per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    prepare_process()
    source = load_data(CIFAR)
    train = source.split("train").batch()
    order = torch.randperm(len(train), generator=Rng.root(0, salt="rounds").torch())
    data = {
        "private": train.pick(order[: CLIENTS * EACH]),
        "auxiliary": train.pick(order[CLIENTS * EACH :]),
        "test": source.split("test").batch(),
    }
    for seed in range(given.seeds):
        for attacked in (0, 1, 5):
            table = federation(attacked, given.rounds, seed=seed, data=data)
            print(json.dumps(table), flush=True)


if __name__ == "__main__":
    main()
