"""How ranks are started: one file per family of launchers."""
