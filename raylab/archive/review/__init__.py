"""What reviewers have at hand: leases, drafts, decisions that wait, sessions; outside the chain."""
