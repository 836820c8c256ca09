"""Build federation, roles and grants from a capture, as for a simulation but with the messages recorded."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from glasshouse.audit.simulation.build import Built, built_on, defense_of
from glasshouse.audit.simulation.deal import load_data, spare_of, wants_of
from glasshouse.audit.simulation.known import known_words
from glasshouse.data.splits import Roles, deal
from glasshouse.errors import BadFile, BadValue
from glasshouse.federation.setting import Setting
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.tensors import check_finite
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Architecture, Batch

SAME = 1 / 255
"""Images that differ by less than one of 256 levels in every pixel count as the same image."""


def build_captured(scenario: Scenario, transcript: Transcript, *, seed: int) -> Built:
    """Build everything that an audit of a capture needs besides the transcript.

    Raises:
        GlasshouseError: data, model and capture do not match; says which.
    """
    data, architecture = scenario.data, transcript.terms.architecture
    source = load_data(data, data.source)
    if not architecture.fits(source.input_shape, source.classes):
        raise BadValue(
            f"data '{data.source}' beside a capture",
            needs=f"{architecture.asks}, as clients train on",
            got=f"{source.input_shape} of {source.classes}",
            fix="set data.source, data.resize and data.channels to what the clients' data are like",
        )
    rng = Rng.root(seed, salt=source.checksum)
    wants = wants_of(scenario)
    spare = spare_of(scenario, source)
    roles = (
        deal(source, wants, by=data.deal, spare=spare, rng=rng.child("roles"))
        if wants
        else Roles(duplicates={})
    )
    truth = truth_of(Path(scenario.captured), architecture)
    # Equal rows of a table are two people: leaving one of them out would bend what guessing reaches.
    known = known_words(truth.private, roles, architecture.inputs)
    if not architecture.inputs.recurs:
        _check_overlap(roles, truth.private)
    built = built_on(scenario, _setting(scenario, transcript, truth), roles, source, rng=rng)
    images = f"{len(truth.private)} {architecture.inputs.nouns} of test clients; {built.facts.data}"
    facts = replace(built.facts, data=images, notes=(*built.facts.notes, *known))
    return replace(built, marked={**truth.marked, **built.marked}, facts=facts)


def truth_of(capture: Path, architecture: Architecture) -> Truth:
    """The ground truth recorded by test clients; empty if none recorded any."""
    if (capture / "truth").is_dir():
        return read_truth(capture / "truth")
    nobody = Batch(inputs=torch.zeros(0, *architecture.input_shape), labels=torch.zeros(0, dtype=torch.int64))
    return Truth(private=nobody, shards={}, used={})


def _setting(scenario: Scenario, transcript: Transcript, truth: Truth) -> Setting:
    """The federation that ran. Clients that recorded nothing have empty shards: their data are unknown.

    Raises:
        BadFile: no broadcast was recorded.
        BadValue: the broadcast is not finite.
    """
    broadcasts = [b for record in transcript.rounds for b in record.broadcasts]
    if not broadcasts:
        raise BadFile(
            f"capture '{scenario.captured}'",
            needs="a broadcast: attacks start from the model that clients received",
            got="none",
            fix="keep the broadcasts of the rounds whose updates are kept",
        )
    check_finite(broadcasts[0].tensors, subject="the first broadcast")
    return Setting(
        terms=transcript.terms,
        rounds=scenario.federation.rounds,
        private=truth.private,
        shards=tuple(
            torch.tensor(truth.shards.get(client, ()), dtype=torch.int64)
            for client in range(transcript.terms.clients)
        ),
        start=broadcasts[0].tensors,
        build=models.build,
        defenses=tuple(defense_of(d.name, d.arguments) for d in scenario.defenses),
    )


def _check_overlap(roles: Roles, private: Batch) -> None:
    """Reject roles that share an image with a test client, up to rounding: their preprocessing differs.

    Raises:
        BadValue: names the role and the number of shared images.
    """
    own = private.inputs.flatten(1).float()  # tokens are numbers, too
    for role, batch in roles.parts().items():
        parts = torch.split(batch.inputs.flatten(1).float(), 256) if len(own) else ()
        shared = sum(int((torch.cdist(part, own, p=math.inf).amin(1) < SAME).sum()) for part in parts)
        if shared:
            raise BadValue(
                f"{role} data beside a capture",
                needs="no image that a test client trained on",
                got=f"{shared} of {len(batch)}",
                fix=f"take it from another split or source: data.{role}_split",
            )
