"""The table of one site of a job of statistics."""

import document_apps as apps
import pandas as pd
from nvflare.app_opt.statistics.df.df_core_statistics import DFStatisticsCore


class Columns(DFStatisticsCore):
    """Sixty rows of breast cancer for each site."""

    def initialize(self, fl_ctx):
        """Take the rows of this site's number."""
        first = apps.ROWS * (int(fl_ctx.get_identity_name().rpartition("-")[2]) - 1)
        rows, _ = apps.cancer()
        names = [column.name for column in apps.cancer_table().columns]
        self.data = {"train": pd.DataFrame(rows[first : first + apps.ROWS], columns=names)}
