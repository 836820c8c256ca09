"""What an audit found, for people: one page of HTML, a summary for the terminal, two runs side by side.

Reads ``glasshouse.audit.result`` and nothing else, and works without torch.
"""

from glasshouse.report.html import write_html

__all__ = ["write_html"]
