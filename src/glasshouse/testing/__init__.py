"""What plug-ins are tested with: contracts to inherit, toy federations. Needs the extra ``test``."""
