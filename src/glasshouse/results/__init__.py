"""The results of an audit as plain records, for reports, scripts and notebooks. Needs no torch."""
