"""How the attacks and metrics of a result are called and shown, as they describe themselves in it.

A name without a description (of an old result, say) is shown as it was registered, its numbers as they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from glasshouse.results.cards import AttackCard, MetricCard
from glasshouse.results.records import Result

SEVERITIES: Final = ("images", "membership", "labels", "other")
KINDS: Final[Mapping[str, str]] = {
    "images": "private examples",
    "membership": "facts about who takes part",
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
"""How utility is shown; no metric of an attack."""


@final
@dataclass(frozen=True, kw_only=True)
class Cards:
    """The descriptions that one or more results carry, by label of the attack and name of the metric."""

    attacks: Mapping[str, AttackCard]
    metrics: Mapping[str, MetricCard]

    def attack(self, label: str) -> str:
        """The title of an attack; a label that the scenario gave is kept.

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
        """A title that begins with an attack's registered name, with the attack's own title instead.

        Examples:
            >>> Cards.of(Result(suite="empty")).title("mine (defenses = none)")
            'mine (no defence)'
        """
        first, space, rest = text.partition(" ")
        rest = rest.replace("defenses = none", "no defence").replace("defenses = ", "")
        return self.attack(first.removesuffix(":")) + (":" if first.endswith(":") else "") + space + rest

    def rank(self, name: str) -> tuple[int, int, str]:
        """Position of a metric in the order in which metrics are quoted: severe kinds first."""
        card = self.metric(name)
        return SEVERITIES.index(card.severity), card.order, name

    def notes(self, names: Iterable[str]) -> tuple[str, ...]:
        """What must be known about these metrics to compare them with a paper's, each once."""
        return tuple(dict.fromkeys(note for name in names if (note := self.metric(name).note)))

    @staticmethod
    def of(*results: Result) -> "Cards":
        """The cards of results; those of the last win."""
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
