"""Protocols whose server clips updates and adds noise: private against everybody but the server."""
