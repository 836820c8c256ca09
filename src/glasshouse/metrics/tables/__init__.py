"""Metrics of tables: rows and cells, and what attacks prove about them."""
