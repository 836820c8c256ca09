"""The table of one site of a job of boosted trees: it says what its rows are, for the audit."""

import document_apps as apps
import xgboost
from nvflare.app_opt.xgboost.data_loader import XGBDataLoader

from glasshouse.integrations.nvflare.truth import recorded
from glasshouse.integrations.watching import used


class Loader(XGBDataLoader):
    """Sixty rows of breast cancer for each site.

    Args:
        truth: folder of what the test sites record.
        rounds: of the job.
    """

    def __init__(self, truth, rounds):
        self.truth = truth
        self.rounds = rounds

    def load_data(self):
        """The same matrix for training and validation."""
        rows, labels = apps.cancer()
        first = apps.ROWS * (int(self.client_id.rpartition("-")[2]) - 1)
        own = slice(first, first + apps.ROWS)
        for number in range(self.rounds):
            with recorded(self.truth, site=self.client_id, round=number):
                used(rows[own], labels[own])
        matrix = xgboost.DMatrix(rows[own], labels[own])
        return matrix, matrix
