"""The instrument itself: clients, protocols, defences and the round loop that is recorded."""
