"""Attacks on federated transfer learning: the head is trained, the features are frozen."""
