"""Federations that really ran: a transcript in place of a simulation, what test clients recorded as truth."""
