"""How clients deviate, one file each; registered in the group ``glasshouse.behaviours``."""
