"""raylab: ARC training, OPT-Code annotation and benchmark quality as jobs on Ray."""
