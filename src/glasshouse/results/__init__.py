"""What an audit found, as plain records: what reports, scripts and notebooks read. Needs no torch."""
