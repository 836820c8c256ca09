"""Test utilities for plug-ins: contracts to inherit and toy federations. Needs the extra ``test``."""
