"""Metrics of tables: rows and cells that are claimed right, and what is proved of rows."""
