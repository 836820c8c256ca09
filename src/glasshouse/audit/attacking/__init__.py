"""Run attacks on recorded transcripts: units, claims, isolation, replay."""
