"""An app for tests of the gate. It needs numpy alone, so that its processes start fast."""
