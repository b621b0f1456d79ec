"""OPT-Code in plain Python: the code and its agreement, cases, and how a case is decided."""
