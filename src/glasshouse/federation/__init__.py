"""Simulated federations: clients, protocols, defences and the recorded round loop."""
