"""Documents that travel as messages: trees, statistics, survival tables and moments, read under limits."""
