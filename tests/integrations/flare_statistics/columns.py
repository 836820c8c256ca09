"""The table of one site of a job of statistics: it says what its rows are, for the audit."""

import document_apps as apps
import pandas as pd
from nvflare.app_opt.statistics.df.df_core_statistics import DFStatisticsCore

from glasshouse.integrations.nvflare.truth import recorded
from glasshouse.integrations.watching import used

PASSES = 2


class Columns(DFStatisticsCore):
    """Sixty rows of breast cancer for each site.

    Args:
        truth: folder of what the test sites record.
    """

    def __init__(self, truth):
        super().__init__()
        self.truth = truth

    def initialize(self, fl_ctx):
        """Take the rows of this site's number."""
        site = fl_ctx.get_identity_name()
        first = apps.ROWS * (int(site.rpartition("-")[2]) - 1)
        rows, labels = apps.cancer()
        own = slice(first, first + apps.ROWS)
        for number in range(PASSES):
            with recorded(self.truth, site=site, round=number):
                used(rows[own], labels[own])
        names = [column.name for column in apps.cancer_table().columns]
        self.data = {"train": pd.DataFrame(rows[own].astype(float), columns=names)}
