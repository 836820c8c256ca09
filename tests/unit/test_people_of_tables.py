"""``attribute`` and ``reidentified``: slow definitions, what their nulls know, and where they must refuse."""

import numpy as np
import pytest
import torch

from glasshouse.data.tables.clinic import TABLE, clinic
from glasshouse.errors import BadValue, Undefined
from glasshouse.examples import Batch
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.tables.people import Attribute, Reidentified
from glasshouse.modalities.row import Column, Row

SMALL = Row(
    columns=(
        Column(name="age", kind="integer", low=0, high=10),
        Column(name="town", kind="categorical", levels=("a", "b", "c")),
        Column(name="ill", kind="binary", levels=("no", "yes")),
    )
)


def rows(*values):
    return SMALL.encode(torch.tensor(values, dtype=torch.float64))


def drawn(split, count, seed):
    batch = clinic("").splits[split].batch()
    return batch.pick(torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))[:count])


class TestAttribute:
    context = ScoreContext(inputs=SMALL)

    def test_claims_are_paired_by_the_other_columns(self):
        """Were the sensitive column asked, too, the claims would change places and be right."""
        truth = rows([2, 0, 1], [3, 0, 0])
        claimed = rows([2, 0, 0], [3, 0, 1])
        assert Attribute(column="ill").score(claimed, truth, context=self.context).tolist() == [0, 0]
        assert Attribute(column="town").score(claimed, truth, context=self.context).tolist() == [1, 1]

    def test_a_row_without_a_claim_is_a_miss(self):
        truth = rows([2, 0, 1], [9, 1, 1])
        metric = Attribute(column="ill")
        assert metric.score(truth[1:], truth, context=self.context).tolist() == [0, 1]
        assert metric.score(truth[:0], truth, context=self.context).tolist() == [0, 0]

    def test_the_last_column_is_the_default(self):
        truth = rows([2, 0, 1])
        assert Attribute().score(rows([9, 2, 1]), truth, context=self.context).tolist() == [1]

    def test_the_null_reads_the_other_columns_but_not_this_one(self):
        """Public rows say that town b is ill; a private row's own value changes nothing of the guess."""
        public = rows(*[[i % 10, i % 3, i % 3 == 1] for i in range(60)])
        auxiliary = Batch(inputs=public, labels=torch.zeros(60).long())
        metric = Attribute(column="ill")
        truth = rows([1, 1, 1], [1, 1, 0], [1, 2, 0], [1, 2, 1])
        assert metric.null(truth, auxiliary, context=self.context).tolist() == [1, 0, 1, 0]

    def test_where_columns_say_nothing_the_null_says_what_is_common(self):
        draws = np.random.default_rng(0)
        values = np.stack([draws.integers(0, 11, 200), draws.integers(0, 3, 200), draws.random(200) < 0.2], 1)
        auxiliary = Batch(inputs=rows(*values.tolist()), labels=torch.zeros(200).long())
        truth = rows(*[[i, i % 3, 0] for i in range(10)])
        assert Attribute(column="ill").null(truth, auxiliary, context=self.context).mean() == 1

    @pytest.mark.parametrize("column", [column.name for column in TABLE.columns])
    def test_the_null_is_at_least_the_most_common_value(self, column):
        """Over 400 rows of the made-up clinic that it has not seen, within three standard errors."""
        public, private = drawn("train", 400, 0), drawn("test", 400, 1)
        place = [c.name for c in TABLE.columns].index(column)
        values = TABLE.decode(private.inputs)[:, place]
        common = TABLE.decode(public.inputs)[:, place].mode().values
        modal = float((TABLE.columns[place].distance(common.expand(400), values) == 0).double().mean())
        context = ScoreContext(inputs=TABLE)
        null = Attribute(column=column).null(private.inputs, public, context=context)
        assert null.mean() >= modal - 3 * (modal * (1 - modal) / 400) ** 0.5

    def test_no_public_rows_no_null(self):
        assert Attribute().null(rows([1, 1, 1]), None, context=self.context) is None

    def test_a_column_that_is_not_there_is_named(self):
        with pytest.raises(BadValue, match="'wealth'"):
            Attribute(column="wealth").score(rows([1, 1, 1]), rows([1, 1, 1]), context=self.context)

    def test_missing_values_and_tolerances_count_as_in_the_schema(self):
        bmi = Column(name="bmi", kind="continuous", low=0, high=100, tolerance=1, missing=True)
        table, absent = Row(columns=(bmi,)), float("nan")
        truth = table.encode(torch.tensor([50.0, absent, 20.0]).double()[:, None])
        claimed = table.encode(torch.tensor([50.9, absent, 22.0]).double()[:, None])
        metric, context = Attribute(column="bmi"), ScoreContext(inputs=table)
        assert metric.score(claimed, truth, context=context).tolist() == [1, 1, 0]


class TestReidentified:
    def context(self, *others):
        return ScoreContext(inputs=SMALL, distractors=rows(*others))

    def test_only_the_public_columns_count(self):
        """The claim is wrong about the illness, and nearest in age and town to its own person."""
        context = self.context([2, 1, 0], [9, 0, 0])
        truth, claimed = rows([2, 0, 1]), rows([3, 0, 0])
        assert Reidentified(columns=("age", "town")).score(claimed, truth, context=context).tolist() == [1]
        assert Reidentified(columns=("ill",)).score(claimed, truth, context=context).tolist() == [0]

    def test_equally_near_people_share(self):
        context = self.context([5, 0, 0], [5, 0, 1], [9, 2, 0])
        truth = rows([5, 0, 1])
        assert Reidentified(columns=("age", "town")).score(truth, truth, context=context).tolist() == [1 / 3]
        assert Reidentified().score(truth, truth, context=context).tolist() == [1 / 2]

    def test_a_row_without_a_claim_leads_to_nobody(self):
        context, truth = self.context([9, 2, 0]), rows([1, 0, 0], [4, 1, 1])
        assert Reidentified().score(truth[:1], truth, context=context).tolist() == [1, 0]
        assert Reidentified().score(truth[:0], truth, context=context).tolist() == [0, 0]

    @pytest.mark.parametrize("columns", [(), ("age", "sex"), ("blood group",)])
    def test_agrees_with_the_slow_definition(self, columns):
        private, claimed, others = (drawn("train", n, seed).inputs for n, seed in ((12, 0), (12, 1), (30, 2)))
        metric, context = Reidentified(columns=columns), ScoreContext(inputs=TABLE, distractors=others)
        places = [i for i, c in enumerate(TABLE.columns) if not columns or c.name in columns]

        def far(one, other):
            values = TABLE.decode(torch.stack([one, other]))
            gaps = [TABLE.columns[i].distance(values[:1, i], values[1:, i]).item() for i in places]
            return round(sum(gaps) / len(gaps), 9)

        table = metric.pairwise(claimed, private, context=context)
        for i, claim in enumerate(claimed):
            distances = [far(claim, other) for other in others]
            for j, person in enumerate(private):
                own = far(claim, person)
                nearest = own <= min(distances)
                assert table[i, j] == pytest.approx(nearest / (1 + distances.count(own)))
        pairs = metric.compare(claimed, private, context=context)
        np.testing.assert_allclose(pairs, np.diag(table))

    @pytest.mark.parametrize("columns", [(), ("age", "sex"), ("blood group",)])
    def test_claims_without_information_reach_one_in_as_many_as_there_are_people(self, columns):
        """4,000 public rows, each held against another person in a register of ten."""
        draws = torch.Generator().manual_seed(3)
        pool = clinic("").splits["train"].batch().inputs
        scores = []
        for _ in range(400):
            order = torch.randperm(len(pool), generator=draws)
            context = ScoreContext(inputs=TABLE, distractors=pool[order[:9]])
            left, right = pool[order[9:19]], pool[order[19:29]]
            scores.append(Reidentified(columns=columns).compare(left, right, context=context).mean())
        assert abs(np.mean(scores) - 0.1) < 4 * np.std(scores) / 20

    def test_without_other_people_there_is_no_register(self):
        with pytest.raises(Undefined, match="distractors"):
            Reidentified().score(rows([1, 1, 1]), rows([1, 1, 1]), context=ScoreContext(inputs=SMALL))
