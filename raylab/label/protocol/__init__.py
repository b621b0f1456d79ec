"""The protocol that decides a case, and people's decisions beside it."""
