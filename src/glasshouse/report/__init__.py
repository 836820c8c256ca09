"""What an audit found, for people: one page of HTML, a summary for the terminal, two runs side by side.

Reads ``glasshouse.results.records`` and nothing else, and works without torch.
"""

from glasshouse.report.compare import (
    Comparison,
    compare,
    comparison_html,
    comparison_summary,
    write_comparison,
)
from glasshouse.report.html import write_html
from glasshouse.report.terminal import lines, summary

__all__ = [
    "Comparison",
    "compare",
    "comparison_html",
    "comparison_summary",
    "lines",
    "summary",
    "write_comparison",
    "write_html",
]
