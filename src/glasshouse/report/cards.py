"""Display names and formats of the attacks and metrics of a result, from the cards that the result carries.

A name without a card (in an old result, for example) is shown as registered, its numbers unformatted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from glasshouse.results.cards import AttackCard, MetricCard
from glasshouse.results.records import Result

SEVERITIES: Final = ("images", "membership", "descriptions", "labels", "other")
KINDS: Final[Mapping[str, str]] = {
    "images": "private examples",
    "membership": "facts about who takes part",
    "descriptions": "inner descriptions of private examples",
    "labels": "private labels",
    "other": "other private facts",
}
ACCURACY: Final = MetricCard(
    name="accuracy",
    label="accuracy",
    sentence="was right in {} of cases",
    explanation="Share of held-out examples that the federation's model classifies right.",
    display="rate",
    low=0.0,
    high=1.0,
    higher_leaks=False,
    unit="share",
    private=False,
)
"""How utility is displayed; it is not a metric of any attack."""


@final
@dataclass(frozen=True, kw_only=True)
class Cards:
    """The cards of one or more results: attacks by label, metrics by name."""

    attacks: Mapping[str, AttackCard]
    metrics: Mapping[str, MetricCard]

    def attack(self, label: str) -> str:
        """The title of an attack; a label set in the scenario takes precedence.

        Examples:
            >>> Cards.of(Result(suite="empty")).attack("my_attack")
            'my_attack'
        """
        card = self.attacks.get(label)
        return card.title if card is not None and card.label == card.name else label

    def metric(self, name: str) -> MetricCard:
        """The card of a metric.

        Examples:
            >>> Cards.of(Result(suite="empty")).metric("my_metric").sentence
            'scored {} on my metric'
        """
        return self.metrics.get(name) or _unknown(name)

    def title(self, text: str) -> str:
        """``text`` with the registered attack name at its start replaced by the attack's title.

        Examples:
            >>> Cards.of(Result(suite="empty")).title("mine (defenses = none)")
            'mine (no defence)'
        """
        first, space, rest = text.partition(" ")
        rest = rest.replace("defenses = none", "no defence").replace("defenses = ", "")
        return self.attack(first.removesuffix(":")) + (":" if first.endswith(":") else "") + space + rest

    def rank(self, name: str) -> tuple[int, int, str]:
        """Sort key of a metric in the order in which metrics are quoted: most severe kinds first."""
        card = self.metric(name)
        return SEVERITIES.index(card.severity), card.order, name

    def notes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Notes needed to compare these metrics with a paper's, without duplicates."""
        return tuple(dict.fromkeys(note for name in names if (note := self.metric(name).note)))

    @staticmethod
    def of(*results: Result) -> "Cards":
        """The cards of all ``results``; where names collide, the last result wins."""
        return Cards(
            attacks={card.label: card for result in results for card in result.attacks},
            metrics={card.name: card for result in results for card in result.metrics},
        )


def _unknown(name: str) -> MetricCard:
    plain = name.replace("_", " ").replace("{", "(").replace("}", ")")
    return MetricCard(
        name=name,
        label=name.replace("_", " "),
        sentence=f"scored {{}} on {plain}",
        explanation="",
        display="plain",
        low=None,
        high=None,
        higher_leaks=True,
        unit="",
    )
