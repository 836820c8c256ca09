"""Human-readable reports of an audit: an HTML page, a terminal summary, a comparison of two runs.

Depends only on ``glasshouse.results.records`` and works without torch.
"""

from glasshouse.report.compare import (
    Comparison,
    compare,
    comparison_html,
    comparison_summary,
    write_comparison,
)
from glasshouse.report.html import write_html
from glasshouse.report.terminal import brief, lines, summary

__all__ = [
    "Comparison",
    "brief",
    "compare",
    "comparison_html",
    "comparison_summary",
    "lines",
    "summary",
    "write_comparison",
    "write_html",
]
